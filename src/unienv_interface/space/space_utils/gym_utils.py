"""Convert spaces and their values to and from Gymnasium. Importing this module imports gymnasium.

| Gymnasium | UniEnv | back in Gymnasium |
| --- | --- | --- |
| `Box` | `BoxSpace` | the same; bfloat16, which Gymnasium lacks, becomes float32 |
| `Box` of bool | `BinarySpace` | `MultiBinary` |
| `Discrete` | integer `BoxSpace` of shape () | the same, if `n` fits the dtype; else a `Box` of shape () |
| `MultiDiscrete` | integer `BoxSpace` | `Box` with the same bounds |
| `MultiBinary` | `BinarySpace` | the same; of shape () `Discrete(2)`, without entries a `Box` of int8 |
| `Text` | `TextSpace` | the same; without a charset Gymnasium's default, the alphanumeric characters |
| `Tuple`, `Dict` | `TupleSpace`, `DictSpace` | the same, keys in order |
| `OneOf` | `UnionSpace` | the same |
| `Graph` | `GraphSpace` of any number of nodes and edges | the same; limits on the numbers are lost |
| `Sequence` of a space that becomes a `BoxSpace` | `DynamicBoxSpace`, axis 0 of any size | `Sequence`, not stacked |
| `Sequence` of anything else | `BatchedSpace` of shape (None,) | `Sequence`, not stacked |

Missing features of a `GraphSpace` are arrays of shape (0,) in Gymnasium, where graphs always have features. Every
other space has no counterpart and raises a TypeError. Each function dispatches on the kind of space: register the
rules of your own kind with `@to_gym_space.register`, `@to_gym_data.register` and so on.
"""

from ._gym_data import from_gym_data, to_gym_data
from ._gym_spaces import from_gym_space, to_gym_space

__all__ = ["from_gym_data", "from_gym_space", "to_gym_data", "to_gym_space"]
