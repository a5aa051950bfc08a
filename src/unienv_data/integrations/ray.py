"""Experience replays in Ray actors.

A batch is sent as one contiguous buffer. The methods of a proxy block until their result arrives. Several processes of
the cluster may use one replay, whose actor handles calls one after the other. A Ray cluster is one trust domain: a
process that can reach an actor can run code in it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from unienv_interface.utils.optional import need

from ..datasets.tensordict_storage import TensorDictStorage
from ..datasets.tensordicts import TensorDictBase, from_buffer, to_buffer, torch
from ._ray_keeper import Keeper, ReplayRecord

if TYPE_CHECKING:
    import ray

    from ..datasets.experience_replay import ExperienceReplay
else:
    ray = need("ray", extra="ray")

# The key of a single tensor that is sent as a TensorDict.
_SINGLE = "__tensor__"
# Methods that return the replay; a proxy returns itself.
_CHAINED = ("set_", "set_at_", "update_", "append_transform", "insert_transform")
# Methods that must not run twice if Ray repeats a call whose answer was lost.
_ONCE = ("add", "extend")
# Values that Ray sends unchanged. UniEnv pickles all others: Ray would make their arrays read-only.
_PLAIN = (type(None), bool, int, float, str, bytes, slice, np.ndarray)


class RemoteReplayError(RuntimeError):
    """The actor of a replay is gone; the message has its name and the way out.

    Examples
    --------
    >>> try:  # doctest: +SKIP
    ...     batch = replay.sample()
    ... except RemoteReplayError:
    ...     replay = RemoteReplay.connect("hopper")
    """


class ReplayRestartedError(RemoteReplayError):
    """The actor of a replay has died and was restarted, and all samples are lost. Raised once per proxy.

    Examples
    --------
    >>> try:  # doctest: +SKIP
    ...     batch = replay.sample()
    ... except ReplayRestartedError:
    ...     replay.extend(samples)  # it is empty now
    """


class ReplayRestartedWarning(UserWarning):
    """The actor of a replay has died and was restarted; the message says with which samples. Issued once per proxy.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", ReplayRestartedWarning)  # doctest: +SKIP
    """


class Packed(NamedTuple):
    """A TensorDict to send: its description, and all its tensors in one array of bytes."""

    description: dict[str, Any]
    buffer: np.ndarray


class Pickled(NamedTuple):
    """A pickled object to send, such as a sampler."""

    content: bytes


class OnDisk(NamedTuple):
    """A storage to send: its folder, which both processes must be able to read."""

    path: str


class Ticket(NamedTuple):
    """Identifies a call."""

    client: str
    number: int


class Answer(NamedTuple):
    """The result of a call, and the number of restarts of the actor before it."""

    generation: int
    result: Any


class About(NamedTuple):
    """The data about an actor that a proxy needs."""

    cls: type
    generation: int
    keeper_name: str | None
    namespace: str


def packed(value: Any) -> Any:
    """Convert a value for sending: a TensorDict to one buffer, numbers unchanged, other objects pickled."""
    if isinstance(value, TensorDictBase):
        return Packed(*to_buffer(value))
    if isinstance(value, torch.Tensor):
        return Packed(*to_buffer(_boxed(value)))
    if isinstance(value, TensorDictStorage) and value.path is not None:
        value.flush()
        return OnDisk(str(value.path))
    if type(value) in (tuple, list):
        return type(value)(packed(item) for item in value)
    if type(value) is dict:
        return {key: packed(item) for key, item in value.items()}
    return value if type(value) in _PLAIN else Pickled(cloudpickle.dumps(value))


def unpacked(value: Any) -> Any:
    """Invert `packed`; the result belongs to the caller."""
    if isinstance(value, Packed):
        data = from_buffer(value.description, value.buffer)
        return data[_SINGLE] if set(data.keys()) == {_SINGLE} else data
    if isinstance(value, Pickled):
        return cloudpickle.loads(value.content)
    if isinstance(value, OnDisk):
        return TensorDictStorage.open(value.path)
    if type(value) is np.ndarray:
        return value.copy()  # Ray's is read-only
    if type(value) in (tuple, list):
        return type(value)(unpacked(item) for item in value)
    return {key: unpacked(item) for key, item in value.items()} if type(value) is dict else value


def _boxed(tensor: torch.Tensor) -> Any:
    from tensordict import TensorDict

    return TensorDict({_SINGLE: tensor}, [])


class ReplayActor:
    """The actor's object: the replay, and the last answer to each client.

    A restarted actor gets its record from a keeper. Ray's own restart is not reliable: Ray warns that it may lose the
    arguments of the constructor, and that the restart then fails.

    Parameters
    ----------
    keeper_name
        The name of the keeper; None if the actor is not restarted.
    namespace
        The namespace of both names.
    """

    def __init__(self, keeper_name: str | None, namespace: str = "") -> None:
        self._keeper_name, self._namespace = keeper_name, namespace
        self._replay: Any = None
        self._record = ReplayRecord()
        self._answered: dict[str, tuple[int, Any]] = {}
        self._is_closed = self._lost_all = False
        self._restart_text = ""
        if keeper_name is not None and ray.get_runtime_context().was_current_actor_reconstructed:
            found = ray.get_actor(keeper_name, namespace)  # older Ray fails where the handle is gone
            record = ray.get(found.get.remote())
            if record.made_of is not None:  # else it died before `make`, whose caller gets the error
                self._restart(record)

    def _restart(self, record: ReplayRecord) -> None:
        """Make the replay again, with its remaining samples."""
        self._make(record.made_of)
        replay = self._replay
        if len(replay) and replay.storage.is_mutable:
            self._restart_text = f"its storage has kept {len(replay)} samples"
        elif record.saved is not None:
            replay.loads(record.saved)
            self._restart_text = f"it continues with the samples saved in {record.saved}: later samples are lost"
        else:
            self._lost_all = not len(replay)
            self._restart_text = "it is in its initial state, since it was never saved"
        self._keep(record._replace(generation=record.generation + 1))

    def make(self, made_of: bytes) -> About:
        """Make the replay from its pickled class and arguments, unless it exists.

        A separate method, because Ray reports an error in the constructor as the death of the actor.
        """
        if self._replay is None:
            self._make(made_of)
            self._keep(ReplayRecord(made_of))
        elif cloudpickle.loads(made_of)[0].__qualname__ != type(self._replay).__qualname__:
            raise TypeError(f"the actor of this name has a {type(self._replay).__name__}: give another name")
        return self.about()

    def _make(self, made_of: Any) -> None:
        cls, args, kwargs = cloudpickle.loads(made_of)
        self._replay = cls(*unpacked(args), **unpacked(kwargs))

    def _keep(self, record: ReplayRecord) -> None:
        self._record = record
        if self._keeper_name is not None:
            keeper = ray.get_actor(self._keeper_name, self._namespace)  # older Ray fails where the handle is gone
            ray.get(keeper.keep.remote(record))

    def record(self) -> ReplayRecord:
        """Return the record to a keeper that has lost it."""
        return self._record

    def about(self) -> About:
        """Return the data that a proxy needs."""
        self._check(None)
        return About(type(self._replay), self._record.generation, self._keeper_name, self._namespace)

    def restart_text(self) -> str:
        """Return a description of the samples after the last restart."""
        return self._restart_text

    def call(
        self, method: str, args: Any, kwargs: Any, ticket: Ticket | None = None, generation: int | None = None
    ) -> Answer:
        """Call a method of the replay; a ReplayRestartedError if the caller does not know that all samples are lost."""
        self._check(generation)
        if ticket is not None and self._answered.get(ticket.client, (-1, None))[0] == ticket.number:
            return Answer(self._record.generation, self._answered[ticket.client][1])
        answer = getattr(self._replay, method)(*unpacked(args), **unpacked(kwargs))
        result = None if answer is self._replay else packed(answer)
        if method in ("dumps", "dump", "save"):
            path = str(Path(unpacked(args[0] if args else kwargs["path"])).absolute())
            self._keep(self._record._replace(saved=path))
        if ticket is not None:
            self._answered[ticket.client] = (ticket.number, result)
        self._is_closed = method == "close"
        return Answer(self._record.generation, result)

    def get(self, name: str, generation: int | None = None) -> Answer:
        """Read an attribute of the replay."""
        self._check(generation)
        return Answer(self._record.generation, packed(getattr(self._replay, name)))

    def _check(self, generation: int | None) -> None:
        if self._replay is None:
            raise RemoteReplayError(
                "the replay's actor was restarted, and its keeper died at the same time: make the replay again, and "
                "load the last save"
            )
        if self._is_closed:  # Ray ends an actor some time after the kill
            raise RemoteReplayError("the replay is gone: another process has closed it")
        if self._lost_all and generation is not None and generation < self._record.generation:
            raise ReplayRestartedError(
                "the replay's actor has died and was restarted, and all samples are lost, since nothing was saved. "
                "This call did nothing. The next calls use the empty replay; dumps() and a storage on disk keep samples"
            )


def remote_class(cls: type[ExperienceReplay], remote_config: dict[str, Any] | None) -> RemoteClass:
    """Make the remote form of a class; see `ExperienceReplay.as_remote`."""
    return RemoteClass(cls, dict(remote_config or {}))


class RemoteClass:
    """Makes replays of a class in actors: a call with the arguments of the class returns a proxy.

    With `get_if_exists` in the options, the proxy is for the existing replay of the name, if any, unchanged.

    Examples
    --------
    >>> remote = MinariExperienceReplay.as_remote({"num_cpus": 2, "name": "hopper"})  # doctest: +SKIP
    >>> replay = remote("mujoco/hopper/expert-v0", batch_size=32)  # doctest: +SKIP
    """

    def __init__(self, cls: type[ExperienceReplay], options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def __call__(self, *args: Any, **kwargs: Any) -> RemoteReplay:
        options = dict(self._options)
        namespace = options.get("namespace") or ray.get_runtime_context().namespace
        keeper: Any = None
        keeper_name = None
        if options.get("max_restarts"):
            number = uuid.uuid4().hex
            keeper_name = f"keeper of a replay, {number}"
            options.setdefault("name", f"{self._cls.__name__} {number[:8]}")
            # Ray restarts the keeper and repeats calls to it, so that the death of a keeper does not affect the replay.
            keeper_options = {"max_restarts": -1, "max_task_retries": -1, "namespace": namespace, "num_cpus": 0}
            keeper_options |= {"lifetime": options.get("lifetime"), "name": keeper_name}
            keeper = ray.remote(Keeper).options(**keeper_options).remote(options["name"], namespace)
        handle: Any = ray.remote(ReplayActor).options(**options).remote(keeper_name, namespace)
        name = options.get("name") or f"{self._cls.__name__} {handle._actor_id.hex()[:8]}"
        made_of = cloudpickle.dumps((self._cls, packed(args), packed(kwargs)))
        try:
            about = _answer_of(handle.make.remote(made_of), name)
        except BaseException:
            if not options.get("get_if_exists"):
                ray.kill(handle)
            if keeper is not None:
                ray.kill(keeper)
            raise
        if keeper is not None and about.keeper_name != keeper_name:
            ray.kill(keeper)  # the actor existed, with its own keeper
            keeper = None
        return RemoteReplay(handle, name, about, keeper)

    remote = __call__


def _answer_of(reference: Any, name: str) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from error
    except ray.exceptions.RayActorError as error:
        raise RemoteReplayError(
            f"the replay {name!r} is gone. With max_restarts in its options, Ray restarts it that often, with the "
            f"samples of the last save. Ray says: {error}"
        ) from error


class RemoteReplay:
    """A replay in an actor, with the methods and properties of its class.

    A proxy can be passed to other processes of the cluster. After the death of the actor, calls raise a
    `RemoteReplayError`; with `max_restarts` in the actor's options Ray restarts it. The replay then has the samples of
    its storage on disk, or of its last save, and the next call issues a `ReplayRestartedWarning`. Without either, the
    next call raises a `ReplayRestartedError` and has no other effect.

    Examples
    --------
    >>> replay = MinariExperienceReplay.as_remote()("mujoco/hopper/expert-v0", batch_size=32)  # doctest: +SKIP
    >>> batch = replay.sample()  # doctest: +SKIP
    """

    def __init__(self, handle: Any, name: str, about: About, keeper: Any = None) -> None:
        self._handle, self._name, self._about = handle, name, about
        self._keeper = keeper  # Ray ends an actor without references, unless it is detached
        self._known_generation = about.generation
        self._client, self._numbers = uuid.uuid4().hex, itertools.count()
        self._is_closed = False

    @classmethod
    def connect(cls, name: str, namespace: str | None = None) -> RemoteReplay:
        """Connect to a replay of another driver or process.

        Parameters
        ----------
        name
            The `name` in the options of the replay's actor. Its `lifetime` must be "detached" if its driver may end.
        namespace
            The namespace of the name, by default of this process.

        Raises
        ------
        RemoteReplayError
            If the replay does not exist.
        TypeError
            If the actor of this name is no replay.
        """
        try:
            handle: Any = ray.get_actor(name, namespace)
        except ValueError as error:
            raise RemoteReplayError(
                f"there is no actor {name!r} in the namespace {namespace or ray.get_runtime_context().namespace!r}: "
                f"give the replay this name, lifetime='detached' if its driver ends, and here the namespace of the name"
            ) from error
        if not hasattr(handle, "restart_text"):
            raise TypeError(f"the actor {name!r} is no replay")
        return cls(handle, name, _answer_of(handle.about.remote(), name))

    def __reduce__(self) -> tuple[type[RemoteReplay], tuple[Any, ...]]:
        about = self._about._replace(generation=self._known_generation)
        return RemoteReplay, (self._handle, self._name, about, self._keeper)

    @property
    def generation(self) -> int:
        """The number of restarts of the actor."""
        return int(_answer_of(self._handle.about.remote(), self._name).generation)

    def _result(self, reference: Any) -> Any:
        try:
            answer = _answer_of(reference, self._name)
        except ReplayRestartedError:
            self._known_generation = self.generation
            raise
        if answer.generation > self._known_generation:
            self._known_generation = answer.generation
            text = _answer_of(self._handle.restart_text.remote(), self._name)
            message = f"the actor of the replay {self._name!r} has died and was restarted: {text}"
            warnings.warn(message, ReplayRestartedWarning, stacklevel=4)
        return unpacked(answer.result)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        ticket = Ticket(self._client, next(self._numbers)) if method in _ONCE else None
        request = (method, packed(args), packed(kwargs), ticket, self._known_generation)
        result = self._result(self._handle.call.remote(*request))
        return self if result is None and method in _CHAINED else result

    def __getattr__(self, name: str) -> Any:
        cls = self._about.cls if not name.startswith("_") else type(self)
        if name.startswith("_") or not hasattr(cls, name):
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}")
        if callable(inspect.getattr_static(cls, name)):
            method: Callable[..., Any] = functools.partial(self._call, name)
            return method
        return self._result(self._handle.get.remote(name, self._known_generation))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of a batch's samples; only the needed entries of the batch are sent."""
        self._call("update_tensordict_priority", data.select("index", "number", self._priority_key, strict=False))

    @functools.cached_property
    def _priority_key(self) -> Any:
        return self._result(self._handle.get.remote("priority_key", self._known_generation))

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __getitem__(self, index: Any) -> Any:
        return self._call("__getitem__", index)

    def __setitem__(self, index: Any, data: Any) -> None:
        self._call("__setitem__", index, data)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches; all users of the replay share one iteration."""
        while (batch := self._call("next")) is not None:
            yield batch

    def close(self) -> None:
        """Close the replay and end its actor, for all users. A second call does nothing."""
        if self._is_closed:
            return
        try:
            with contextlib.suppress(RemoteReplayError):
                self._call("close")
        finally:
            ray.kill(self._handle)
            if self._about.keeper_name is not None:
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(self._about.keeper_name, self._about.namespace))
            self._is_closed = True

    def __enter__(self) -> RemoteReplay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RemoteReplay({self._name!r})"
