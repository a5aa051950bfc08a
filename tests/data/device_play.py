"""Views over two devices: JAX takes this machine for two. Run as a program, since that is settled at its import.

python tests/data/device_play.py
"""

from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
sys.path.insert(0, os.path.dirname(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))

import jax
from buffers import contents, numbers, read
from views import growing, read_windows, wrapped_ring

from unienv_data import CombinedBatch, FrameStackedBatch, ReplayBuffer, ToBackendOrDeviceBatch
from unienv_interface.backends.jax import JaxComputeBackend

JAX = JaxComputeBackend
HERE, THERE = jax.devices()


def main() -> int:
    buffer, held = wrapped_ring(JAX)
    moved = ToBackendOrDeviceBatch(buffer, device=THERE)
    data, metadata = FrameStackedBatch(moved, 1).get_at_with_metadata([3, 9])
    assert {array.device for array in jax.tree.leaves((data, metadata))} == {THERE}
    assert read_windows(FrameStackedBatch(moved, 1), [3, 9]) == held.windows([3, 9], [-1, 0])
    moved.set_at([0], jax.device_put(numbers([77], JAX), THERE))
    assert read(buffer.get_at(0), JAX) == 77

    other, _ = growing(JAX, 1000)
    there = ReplayBuffer.create(other.single_space.to(device=THERE))
    there.extend(jax.device_put(numbers([5, 6], JAX), THERE))
    for device in (None, HERE, THERE):
        batch = CombinedBatch([other, there, buffer], device=device)
        data, metadata = batch.get_at_with_metadata([14, 0, 16])
        assert {array.device for array in jax.tree.leaves((data, metadata))} == {device or HERE}
        assert read(data, JAX) == [6, 1000, held.samples[1]]
        batch.set_at([13], jax.device_put(numbers([50], JAX), device or HERE))
        assert contents(there) == [50, 6]
    print("two devices, all where they belong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
