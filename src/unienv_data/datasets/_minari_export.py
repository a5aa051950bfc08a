"""Export of a recording as a Minari dataset."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.space import Space
from unienv_interface.space.space_utils.gym_utils import to_gym_space
from unienv_interface.utils.optional import need

from ..base.common import BatchBase
from ..base.nested import nested_item
from .minari import check_dataset_id, local_folder

if TYPE_CHECKING:
    import minari
else:
    minari = need("minari", extra="minari")

# The keys of a transition's fields: as `ReplayBufferCollectionWrapper` records them, and in TED form.
_RECORDED = {
    "observation": ("obs",),
    "next observation": ("next_obs",),
    "action": ("action",),
    "reward": ("reward",),
    "terminated": ("terminated",),
    "truncated": ("truncated",),
    "next info": ("info",),
}
_TED = {
    "observation": ("observation",),
    "next observation": ("next", "observation"),
    "action": ("action",),
    "reward": ("next", "reward"),
    "terminated": ("next", "terminated"),
    "truncated": ("next", "truncated"),
    "info": ("info",),
    "next info": ("next", "info"),
}
_OPTIONAL = ("info", "next info")
_DERIVED = {"done", "episode"}  # columns that Minari derives from others


def export_minari(
    buffer: BatchBase,
    dataset_id: str,
    *,
    data_format: str = "hdf5",
    author: str | set[str] | None = None,
    author_email: str | set[str] | None = None,
    algorithm_name: str | None = None,
    code_permalink: str | None = None,
    description: str | None = None,
    requirements: Sequence[str] | None = None,
    progress: bool = True,
) -> Any:
    """Write the episodes of a recording as a local Minari dataset.

    Only closed episodes are written. The dataset appears when it is complete, or not at all. Minari stores each
    observation once, so within an episode the observation after a step must equal the observation before the next step.
    Further columns, such as `context` (the text of a task) or `extras`, are stored as infos, under their names.

    Parameters
    ----------
    buffer
        Transitions with their episodes as segments, as `ReplayBufferCollectionWrapper` records them (`obs`, `action`,
        `reward`, `terminated`, `truncated`, `next_obs`, and optionally `info`) or in TED form.
    dataset_id
        The name of the dataset, with a version at its end.
    data_format
        The file format: "hdf5", "arrow" or "parquet". Images are not compressed.
    author, author_email, algorithm_name, code_permalink, description, requirements
        Metadata of the dataset.
    progress
        Whether a progress bar is shown.

    Returns
    -------
    minari.MinariDataset
        The dataset.

    Raises
    ------
    FileExistsError
        If a dataset of this name exists.
    ValueError
        If Minari cannot store the samples or their episodes; the message says which and why.
    TypeError
        Minari has no counterpart of a space.

    Examples
    --------
    >>> dataset = export_minari(buffer, "lab/cartpole-v0", author="somebody")  # doctest: +SKIP
    """
    check_dataset_id(dataset_id)
    namespace = dataset_id.rpartition("/")[0]
    target = local_folder() / dataset_id
    if target.exists():
        raise FileExistsError(f"{target} exists already: give another dataset_id, such as a higher version")
    episodes = _episodes(buffer)
    fields = _fields(buffer.single_space)
    spaces = {field: nested_item(buffer.single_space, keys) for field, keys in fields.items()}
    further = _further(buffer.single_space, fields, spaces)
    arguments: dict[str, Any] = {
        "algorithm_name": algorithm_name,
        "code_permalink": code_permalink,
        "description": description,
        "author": {author} if isinstance(author, str) else author,
        "author_email": {author_email} if isinstance(author_email, str) else author_email,
        "requirements": None if requirements is None else list(requirements),
    }
    metadata = {key: value for key, value in arguments.items() if value is not None}
    temporary = local_folder() / f".{dataset_id.replace('/', '.')}.{os.getpid()}.tmp"
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        storage = _new_storage(temporary / "data", spaces, data_format)
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": minari.__version__, **metadata})
        for number, indices in enumerate(_with_progress(episodes, dataset_id, progress)):
            episode = _read(buffer, fields, spaces, further, indices, f"episode {number}")
            storage.update_episodes([minari.data_collector.EpisodeBuffer(id=number, **episode)])
        namespaces = minari.namespace
        if namespace and namespace not in namespaces.list_local_namespaces():
            namespaces.create_namespace(namespace)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(temporary, target)
    return minari.load_dataset(dataset_id)


def _episodes(buffer: BatchBase) -> list[np.ndarray]:
    """Return the indices of each closed episode."""
    segments = buffer.get_segments()
    if not segments:
        reason = "does not keep episodes: make it with keep_episodes=True" if segments is None else "has none"
        raise ValueError(f"Minari datasets consist of episodes, and the buffer {reason}")
    starts = np.array([start for start, _ in segments])
    episodes = buffer.episodes_of(starts)
    strides = np.broadcast_to(1 if episodes is None else episodes.stride, len(starts))
    return [np.arange(start, stop, stride) for (start, stop), stride in zip(segments, strides.tolist(), strict=True)]


def _with_progress(episodes: list[np.ndarray], dataset_id: str, progress: bool) -> Iterator[np.ndarray]:
    from tqdm import tqdm

    return iter(tqdm(episodes, desc=dataset_id, unit="episode", disable=not progress))


def _fields(space: Space) -> dict[str, tuple[str, ...]]:
    """Return the keys of a transition's fields in samples of a space."""
    layout = _RECORDED if _has(space, ("obs",)) else _TED
    present = {field: keys for field, keys in layout.items() if _has(space, keys)}
    missing = ["/".join(keys) for field, keys in layout.items() if field not in present and field not in _OPTIONAL]
    if missing:
        raise ValueError(f"samples of {space} have no {', '.join(missing)}, a Minari dataset needs these columns")
    return present


def _further(space: Space, fields: dict[str, tuple[str, ...]], spaces: dict[str, Space]) -> dict[str, Space]:
    """Return the columns to store as infos; a ValueError if an info has the same name."""
    known = {keys[0] for keys in fields.values()} | _DERIVED
    further = {name: child for name, child in getattr(space, "spaces", {}).items() if name not in known}
    infos = {name for field in _OPTIONAL for name in getattr(spaces.get(field), "spaces", ())}
    if not infos.isdisjoint(further):
        raise ValueError(
            f"columns {sorted(infos & set(further))} have the names of infos, and Minari stores them there: export a "
            f"view without them (buffer.select)"
        )
    return further


def _has(space: Space, keys: tuple[str, ...]) -> bool:
    with contextlib.suppress(KeyError):
        nested_item(space, keys)
        return True
    return False


def _new_storage(folder: Path, spaces: dict[str, Space], data_format: str) -> Any:
    storage = minari.dataset.minari_storage.MinariStorage
    options: dict[str, Any] = {}
    if "jpeg_encoding" in inspect.signature(storage.new).parameters:
        options["jpeg_encoding"] = False  # without loss
    try:
        return storage.new(
            folder,
            observation_space=to_gym_space(spaces["observation"]),
            action_space=to_gym_space(spaces["action"]),
            data_format=data_format,
            **options,
        )
    except NotImplementedError as error:
        raise TypeError(f"Minari cannot store values of this space: {error}") from error


# -- one episode -------------------------------------------------------------------------------------------


def _read(
    buffer: BatchBase,
    fields: dict[str, tuple[str, ...]],
    spaces: dict[str, Space],
    further: dict[str, Space],
    indices: np.ndarray,
    name: str,
) -> dict[str, Any]:
    """Read an episode as arguments of Minari's `EpisodeBuffer`."""
    sample = buffer.get_at(indices)
    read = {field: _on_host(spaces[field], nested_item(sample, keys)) for field, keys in fields.items()}
    observations = _joined(read["observation"], read["next observation"], f"{name}: observation")
    infos: Any = {}
    if "next info" in read:
        infos = _as_lists(read["next info"])
        if "info" in read:
            infos = _as_lists(_joined(read["info"], read["next info"], f"{name}: info"))
    for column, space in further.items():
        values = _on_host(space, sample[column])
        if "info" in read:  # infos then have T + 1 entries
            values = _mapped(lambda leaf: np.concatenate((leaf, leaf[-1:])), values)
        infos = {**infos, column: _as_lists(values)}
    return {
        "observations": _as_lists(observations),
        "actions": _as_lists(read["action"]),
        "rewards": np.asarray(read["reward"]).reshape(-1),
        "terminations": np.asarray(read["terminated"], bool).reshape(-1),
        "truncations": np.asarray(read["truncated"], bool).reshape(-1),
        "infos": infos,
    }


def _mapped(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the corresponding leaves of nested values."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _mapped(function, *(value[key] for value in values)) for key in first}
    if isinstance(first, tuple):
        return tuple(_mapped(function, *items) for items in zip(*values, strict=True))
    return function(*values)


def _on_host(space: Space, value: Any) -> Any:
    backend = space.backend
    return _mapped(lambda leaf: backend.to_numpy(leaf) if backend.is_backendarray(leaf) else leaf, value)


def _joined(before: Any, after: Any, name: str) -> Any:
    """Concatenate the values before each step and the value after the last step."""

    def join(now: np.ndarray, following: np.ndarray) -> np.ndarray:
        if not _is_same(now[1:], following[:-1]):
            step = next(step for step in range(len(now) - 1) if not _is_same(now[step + 1], following[step]))
            raise ValueError(
                f"{name} after step {step} differs from the value before the next step: Minari stores it once, so "
                f"this recording cannot be exported"
            )
        return np.concatenate((now, following[-1:]))

    return _mapped(join, before, after)


def _is_same(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")


def _as_lists(value: Any) -> Any:
    """Convert arrays of texts to lists, by which Minari distinguishes texts from numbers."""
    if isinstance(value, dict):
        return {key: _as_lists(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(_as_lists(child) for child in value)
    return value.tolist() if value.dtype == object else value
