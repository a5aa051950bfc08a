"""Experience replays in Ray actors.

A batch travels as one contiguous buffer. The methods of a proxy wait for their result; several processes of the cluster
may use one replay, whose actor serves them one after the other. A Ray cluster is one trust domain: whoever can reach an
actor can run code in it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from unienv_interface.utils.optional import need

from ..datasets.tensordict_storage import TensorDictStorage
from ..datasets.tensordicts import TensorDictBase, from_buffer, to_buffer, torch
from ._ray_keeper import Keeper

if TYPE_CHECKING:
    import ray

    from ..datasets.experience_replay import ExperienceReplay
else:
    ray = need("ray", extra="ray")

# The key of a tensor that travels by itself.
_ALONE = "__tensor__"
# Methods that return the replay itself; those of a proxy return the proxy.
_CHAINED = ("set_", "set_at_", "update_", "append_transform", "insert_transform")
# What must not happen twice if Ray repeats a call whose answer was lost.
_ONCE = ("add", "extend")


class RemoteReplayError(RuntimeError):
    """The actor of a replay is gone; the text says which, and what can be done."""


class Packed(NamedTuple):
    """A TensorDict on its way: what it is built like, and all its tensors in one array of bytes."""

    description: dict[str, Any]
    buffer: np.ndarray


class OnDisk(NamedTuple):
    """A storage on its way: its folder, which both sides must be able to read."""

    path: str


class Ticket(NamedTuple):
    """Tells one call from all others."""

    client: str
    number: int


def packed(value: Any) -> Any:
    """A value as it travels: TensorDicts in one buffer each, tensors as arrays, everything else as it is."""
    if isinstance(value, TensorDictBase):
        return Packed(*to_buffer(value))
    if isinstance(value, torch.Tensor):
        return Packed(*to_buffer(_boxed(value)))
    if isinstance(value, TensorDictStorage):
        value.flush()
        return OnDisk(str(value.path))
    if type(value) in (tuple, list):
        return type(value)(packed(item) for item in value)
    return {key: packed(item) for key, item in value.items()} if type(value) is dict else value


def unpacked(value: Any) -> Any:
    """The value that `packed` has made ready."""
    if isinstance(value, Packed):
        data = from_buffer(value.description, value.buffer)
        return data[_ALONE] if set(data.keys()) == {_ALONE} else data
    if isinstance(value, OnDisk):
        return TensorDictStorage.open(value.path)
    if type(value) in (tuple, list):
        return type(value)(unpacked(item) for item in value)
    return {key: unpacked(item) for key, item in value.items()} if type(value) is dict else value


def _boxed(tensor: torch.Tensor) -> Any:
    from tensordict import TensorDict

    return TensorDict({_ALONE: tensor}, [])


class ReplayActor:
    """Runs in the actor: the replay, and whose calls have been answered.

    An actor that Ray starts again finds what it is made of, and where it was saved, with a keeper of this name. Ray
    itself would not do: it warns that it may lose what a constructor was given, and that a restart then fails.
    """

    def __init__(self, keeper: str | None) -> None:
        self._keeper = None if keeper is None else ray.get_actor(keeper)
        self._answered: dict[str, tuple[int, Any]] = {}
        self._is_closed = False
        if self._keeper is not None and ray.get_runtime_context().was_current_actor_reconstructed:
            made_of, saved = ray.get(self._keeper.get.remote())
            if made_of is not None:  # else it has died before it was made, and whoever makes it is told so
                self._make(*pickle.loads(made_of))
            if saved is not None:
                self._replay.loads(saved)

    def make(self, cls: type[ExperienceReplay], args: Any, kwargs: Any) -> None:
        """Make the replay. Not with the actor, since an error there would be reported as the actor's death."""
        self._make(cls, args, kwargs)
        if self._keeper is not None:
            ray.get(self._keeper.keep_made_of.remote(cloudpickle.dumps((cls, args, kwargs))))

    def _make(self, cls: type[ExperienceReplay], args: Any, kwargs: Any) -> None:
        self._replay = cls(*unpacked(args), **unpacked(kwargs))

    def call(self, method: str, args: Any, kwargs: Any, ticket: Ticket | None = None) -> Any:
        """Call a method of the replay."""
        self._refuse_if_closed()
        if ticket is not None and self._answered.get(ticket.client, (-1, None))[0] == ticket.number:
            return self._answered[ticket.client][1]
        answer = getattr(self._replay, method)(*unpacked(args), **unpacked(kwargs))
        result = None if answer is self._replay else packed(answer)
        if method in ("dumps", "dump", "save"):
            path = str(Path(args[0] if args else kwargs["path"]).absolute())
            if self._keeper is not None:
                ray.get(self._keeper.keep_saved.remote(path))
        if ticket is not None:
            self._answered[ticket.client] = (ticket.number, result)
        self._is_closed = method == "close"
        return result

    def get(self, name: str) -> Any:
        """An attribute of the replay."""
        self._refuse_if_closed()
        return packed(getattr(self._replay, name))

    def _refuse_if_closed(self) -> None:
        """Ray ends an actor some time after it was told to; what arrives until then is answered as what comes later."""
        if self._is_closed:
            raise RemoteReplayError("the replay is gone: one of those who use it has closed it")


def remote_class(cls: type[ExperienceReplay], remote_config: dict[str, Any] | None) -> RemoteClass:
    """See `ExperienceReplay.as_remote`."""
    return RemoteClass(cls, dict(remote_config or {}))


class RemoteClass:
    """Makes replays of a class in actors: called as the class is, it returns a proxy."""

    def __init__(self, cls: type[ExperienceReplay], options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def __call__(self, *args: Any, **kwargs: Any) -> RemoteReplay:
        options = dict(self._options)
        keeper = keeper_name = None
        if options.get("max_restarts"):
            keeper_name = f"keeper of a replay, {uuid.uuid4().hex}"
            lifetime = options.get("lifetime")
            keeper = ray.remote(Keeper).options(num_cpus=0, name=keeper_name, lifetime=lifetime).remote()
        handle: Any = ray.remote(ReplayActor).options(**options).remote(keeper_name)
        name = options.get("name") or f"{self._cls.__name__} {handle._actor_id.hex()[:8]}"
        replay = RemoteReplay(handle, self._cls, name, keeper)
        try:
            replay._answer(handle.make.remote(self._cls, packed(args), packed(kwargs)))
        except BaseException:
            replay._kill()
            raise
        return replay

    remote = __call__


class RemoteReplay:
    """A replay in an actor, with the methods and properties of its class.

    It can be handed to other processes of the cluster. When the actor has died, calls raise a `RemoteReplayError`; with
    `max_restarts` in the actor's options Ray starts it again, and it goes on from where it was last saved.
    """

    def __init__(self, handle: Any, cls: type[ExperienceReplay], name: str, keeper: Any) -> None:
        self._handle, self._cls, self._name, self._keeper = handle, cls, name, keeper
        self._client, self._numbers = uuid.uuid4().hex, itertools.count()
        self._is_closed = False

    def __reduce__(self) -> tuple[type[RemoteReplay], tuple[Any, ...]]:
        return RemoteReplay, (self._handle, self._cls, self._name, self._keeper)

    def _answer(self, reference: Any) -> Any:
        try:
            result = unpacked(ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except ray.exceptions.RayActorError as error:
            raise RemoteReplayError(
                f"the replay {self._name!r} is gone. With max_restarts in its options it is started again, as often "
                f"as that says, from where it was last saved. Ray says: {error}"
            ) from error
        return result

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        ticket = Ticket(self._client, next(self._numbers)) if method in _ONCE else None
        result = self._answer(self._handle.call.remote(method, packed(args), packed(kwargs), ticket))
        return self if result is None and method in _CHAINED else result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self._cls, name):
            raise AttributeError(f"{self._cls.__name__} has no attribute {name!r}")
        if callable(inspect.getattr_static(self._cls, name)):
            method: Callable[..., Any] = functools.partial(self._call, name)
            return method
        return self._answer(self._handle.get.remote(name))

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __getitem__(self, index: Any) -> Any:
        return self._call("__getitem__", index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self._call("__setitem__", index, data)

    def __iter__(self) -> Iterator[Any]:
        """Batches of one iteration, which all who use the replay share."""
        while (batch := self._call("next")) is not None:
            yield batch

    def close(self) -> None:
        """Close the replay and end its actor, for all who use it. Closing it again does nothing."""
        if self._is_closed:
            return
        try:
            self._call("close")
        finally:
            self._kill()
            self._is_closed = True

    def _kill(self) -> None:
        ray.kill(self._handle)
        if self._keeper is not None:
            ray.kill(self._keeper)

    def __enter__(self) -> RemoteReplay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteReplay({self._name!r})"
