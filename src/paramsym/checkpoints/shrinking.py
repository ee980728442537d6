"""Small sizes for a Hugging Face configuration, by what each of its numbers is for.

A configuration is a table of numbers under names that differ between models; what a number is for
follows from words in its name. Which sizes are equal is part of the architecture, and which one is
larger may be: equal sizes stay equal, and different ones different and in order.

What would make the smallest network degenerate is avoided. A vocabulary has more entries than a
width, and enough for a block that sees nothing but token vectors, since fewer vectors span less
than the space of its weights; a head has four coordinates, and eight where only some of them turn;
positions are the tokens of the example inputs, and some more for those that start counting late.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paramsym.checkpoints.roles import role_of

Path = tuple[str, ...]  # names of nested configurations, then that of a field
Changes = dict[Path, Any]

POSITIONS = 9  # two more than tokens, for models that start after the padding
_STAGES = 3
_EXPERTS = 4
_CHOSEN = 2  # of the experts, for each token
_PATCH, _PATCHES = 2, 2


@dataclass(frozen=True)
class Profile:
    """How small: heads, coordinates of each, and layers of each kind (two at least in all).

    `tight` is for what is too large otherwise: heads of two coordinates, unless some of them turn,
    and a vocabulary just above a width.
    """

    heads: int = 2
    head: int = 4
    layers: int = 1
    positions: bool = True  # whether tables of positions shrink, too
    tight: bool = False


PROFILES = (
    Profile(),
    Profile(head=8),
    Profile(heads=4, head=8),
    Profile(layers=2, positions=False),
    Profile(head=2, tight=True),
)

_WINDOW = 8  # of attention, each position with four others before and behind
_PICTURE = 64  # the height and width of an image that six layers may halve
_SHARES = ("partial_rotary_factor", "rotary_pct")
_SECTIONS = "mrope_section"
_ROTARY = (*_SHARES, "rope_parameters", "rope_scaling")
_COUNTED = re.compile(r"^(n|num)_")
_EXPERTS_BY = "_experts_implementation"  # grouped products of matrices want rows of 16 bytes
_COUNTED_IN_STAGES = "depths"


def changes_of(config: Any, profile: Profile, path: Path = ()) -> Changes:
    """The fields of a configuration and of those nested in it that become small, with their values.

    Args:
        config: a configuration of transformers; only read.
        profile: how small.
        path: where it is nested.
    """
    own = _Sizes(config, profile)
    found = {(*path, name): value for name, value in own.changed()}
    for name, part in _fields(config):
        if hasattr(part, "to_dict"):
            found |= changes_of(part, profile, (*path, name))
    return found


def fillings_of(config: Any, profile: Profile, path: Path = ()) -> Changes:
    """Sizes for the fields that say none, for models that want one; and no cache."""
    sizes = _Sizes(config, profile)
    small = {
        "head": sizes.head, "few heads": sizes.few, "experts": _EXPERTS, "chosen": _CHOSEN,
        "vocabulary": sizes.vocabulary, "chosen groups": 1,
    }  # fmt: skip
    found = experts_by_one_product(config, path)
    for name, part in _fields(config):
        if part is None and (size := small.get(role_of(name), int(bool(_COUNTED.match(name))))):
            found[*path, name] = size
        elif name == "use_cache" and part:
            found[*path, name] = False
        elif name in _ROTARY and isinstance(part, dict) and _SECTIONS not in part:
            own = _turning_half(part, sizes.head)
            found[*path, name] = {**own, _SECTIONS: _sections([0] * 3, sizes.head)}
        elif hasattr(part, "to_dict"):
            found |= fillings_of(part, profile, (*path, name))
    return found


def experts_by_one_product(config: Any, path: Path = ()) -> Changes:
    """Mixtures that multiply by all chosen experts at once, for widths that other ways refuse."""
    found: Changes = {}
    counts = any(role_of(name) == "experts" and _is_size(v) for name, v in _fields(config))
    if counts and hasattr(config, _EXPERTS_BY):
        found[*path, f"{_EXPERTS_BY}_internal"] = "batched_mm"
    for name, part in _fields(config):
        if hasattr(part, "to_dict"):
            found |= experts_by_one_product(part, (*path, name))
    return found


def changed(config: Any, changes: Mapping[Path, Any]) -> Any:
    """A copy of a configuration with other values of some fields."""
    made = copy.deepcopy(config)
    for (*nested, name), value in changes.items():
        part = made
        for step in nested:
            part = getattr(part, step)
        part.__dict__[name] = copy.deepcopy(value)  # what a setter would derive has its own entry
    return made


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    yield from vars(config).items()


def _turning_half(value: Any, head: int) -> Any:
    """Rotary embeddings that turn four coordinates of a head of eight, where they turn a part."""
    if isinstance(value, dict):
        return {key: _sections(part, head) if key == _SECTIONS and part
                else _turning_half(part, head) if isinstance(part, dict) or key in _SHARES
                else part for key, part in value.items()}  # fmt: skip
    return 4 / head if isinstance(value, float) and value < 1 else value


def _sections(value: list[int], head: int) -> list[int]:
    """The pairs of coordinates that turn by time, by height and by width, all of a head."""
    rest = [max(1, head // 2 // len(value))] * (len(value) - 1)
    return [max(1, head // 2 - sum(rest)), *rest]


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


class _Sizes:
    """The small sizes of one configuration."""

    def __init__(self, config: Any, profile: Profile):
        self.config, self.profile = config, profile
        self.fields = {name: value for name, value in _fields(config) if value is not None}
        self.roles = {name: role_of(name) for name in self.fields}
        stages = self.fields.get(_COUNTED_IN_STAGES)
        self.stages = len(stages) if isinstance(stages, (list, tuple)) else 0
        heads = self._first("heads") or 1
        few = min([v for n, v in self._of("few heads")] or [heads])
        self.grouped = few < heads
        self.heads = 1 if heads == 1 else max(4, profile.heads) if self.grouped else profile.heads
        self.head = max(profile.head, 8) if self._turns_partly() else profile.head
        self.width = self._main_width()
        if self._crowd(heads) > max(0, self.heads * self.head - self.head - 4):
            self.heads *= 2
        self.few = self.heads if not self.grouped else min(few, self.heads // 2)
        self.widths = self._widths(heads)
        text = self.fields.get("text_config")
        self.lent = hasattr(text, "to_dict") and not self._of("vocabulary")
        self.vocabulary = _Sizes(text, profile).vocabulary if self.lent else self._vocabulary()

    def _of(self, role: str) -> list[tuple[str, int]]:
        return [(n, v) for n, v in self.fields.items() if self.roles[n] == role and _is_size(v)]

    def _first(self, role: str) -> int:
        """The first number of a role; of a list, its first."""
        for name, value in self.fields.items():
            first = value[0] if isinstance(value, (list, tuple)) and value else value
            if self.roles[name] == role and isinstance(first, int) and _is_size(first):
                return first
        return 0

    def _main_width(self) -> int:
        """The width of the stream, under whichever name."""
        names = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim")
        for name in reversed(names) if self.stages else names:
            value = getattr(self.config, name, None)
            if isinstance(value, int) and _is_size(value):
                return value
        return 0

    def _turns_partly(self) -> bool:
        """Whether rotary embeddings turn only some coordinates of a head."""
        tables = [self.fields, *(v for v in self.fields.values() if isinstance(v, dict))]
        tables += [v for t in tables for v in t.values() if isinstance(v, dict)]
        shares = [table.get(name) for table in tables for name in _SHARES]
        if any(isinstance(share, float) and share < 1 for share in shares):
            return True
        heads = self._first("heads") or 1
        return 0 < self._first("rotary") < self._main_width() // heads

    def _all_widths(self) -> set[int]:
        found = {v for _, v in self._of("width")}
        return found | {v for _, vs in self._lists() for v in vs if _is_size(v)}

    def _one_head(self, heads: int) -> int:
        return self._first("head") or (self.width // heads if self.width else 0)

    def _crowd(self, heads: int) -> int:
        """The room that the ranks between one head and a stream below all of them want."""
        head = self._one_head(heads)
        if not self.width < heads * head:
            return 0
        return 2 * sum(head < v < self.width for v in self._all_widths())

    def _widths(self, heads: int) -> dict[int, int]:
        """Each width of the configuration → a small one: equal, smaller, and larger as they were.

        What attention writes is as wide as its heads together, the stream likewise where it was.
        What holds one head still does: a rank below it would make most of the head unread.
        """
        head = self._one_head(heads)
        joint, small = heads * head, self.heads * self.head
        sign = (self.width > joint) - (self.width < joint)
        found = {joint: small, head: self.head} if joint else {}
        found[self.width] = base = small + 4 * sign
        others = self._all_widths() - found.keys()
        below = sorted(v for v in others if v < self.width)
        above = sorted(v for v in others if v > self.width)
        for k, value in enumerate(reversed(below)):
            least = self.head if joint and head <= value else 2
            found[value] = max(min(least, base), base - 2 * (k + 1))
        for k, value in enumerate(above):
            found[value] = max(base, small) + 4 * (k + 1)
        return found

    def _lists(self) -> Iterator[tuple[str, list]]:
        """Widths that are given layer by layer or stage by stage."""
        for name, value in self.fields.items():
            if self.roles[name] == "width" and isinstance(value, (list, tuple)):
                yield name, list(value)

    def _vocabulary(self) -> int:
        """More words than the widest layer has units, and than a norm over a latent has squares."""
        latents = [self.widths[v] for n, v in self._of("width") if n.endswith("_rank")]
        squares = max((r * (r + 1) // 2 for r in latents), default=0)
        if self.profile.tight:
            return max(squares, self.widths.get(self.width, 8)) + 8
        largest = max(self.widths.values(), default=8)
        largest = max(largest, 4 * self.widths.get(self.width, 0) * self._is_implicit())
        return max(squares + 8, 2 * largest + self.widths.get(self.width, 8) + 8)

    def _is_implicit(self) -> bool:
        """Whether the hidden width of the blocks is no field: four times the stream, then."""
        return not any(self.roles[n] == "width" and v > self.width for n, v in self._of("width"))

    # -- the changes -------------------------------------------------------------------------
    def changed(self) -> Iterator[tuple[str, Any]]:
        kept = self._kept_layers()
        for name, value in self.fields.items():
            role = self.roles[name]
            if _is_size(value) and self.stages == value and _COUNTED.match(name) and not role:
                small = min(value, _STAGES)
            elif _is_size(value):
                small = self._small(role, value, kept)
            elif isinstance(value, (list, tuple)) and value:
                small = self._small_list(name, list(value), kept)
                small = type(value)(small) if small is not None else None
            else:
                small = _turning_half(value, self.head) if name in _ROTARY else None
            if small is not None and small != value:
                yield name, small

    def _small(self, role: str, value: int, kept: Mapping[int, list[int]]) -> int | None:
        """A small size for one of a role; None where it stays."""
        if self.stages and (role == "stages" or (role == "layers" and value == self.stages)):
            return min(value, _STAGES)
        if role in ("layers", "window"):
            chosen = kept.get(value)
            return len(chosen) if chosen else min(value, max(map(len, kept.values()), default=1))
        table = {
            "few heads": min(value, self.few), "heads": self.heads, "head": self.head,
            "rotary": self.head // 2, "vocabulary": self.vocabulary,
            "experts": min(value, _EXPERTS), "chosen": min(value, _CHOSEN),
            "chosen groups": min(value, _CHOSEN),
            "patch": min(value, _PATCH), "image": min(value, self._image()),
            "windowed": min(value, _PATCHES) if self.stages else value,
            "attended": min(value, _WINDOW), "seen": min(value, _WINDOW),
            "groups": min(value, self.heads),
            # of two units: groups as wide as what is in front of the stream all see the same
            "narrow groups": min(value, self.widths.get(self.width, 2) // 2),
            "width": self.widths.get(value, value),
            "positions": min(value, POSITIONS) if self.profile.positions else value,
        }  # fmt: skip
        if role == "head" and value == self._turned_and_not():
            return 2 * self.head
        if role == "token":
            return value if value < self.vocabulary else self._token(value)
        return table.get(role)

    def _turned_and_not(self) -> int:
        """The coordinates of a head of which a part of its own turns; 0 where none does."""
        parts = [self.fields.get(f"qk_{part}_head_dim") for part in ("nope", "rope")]
        return sum(part for part in parts if part is not None) if all(parts) else 0

    def _image(self) -> int:
        """Two patches in each direction, also after stages that halve their number."""
        return _PATCH * _PATCHES * 2 ** max(0, min(self.stages, _STAGES) - 1)

    def _token(self, value: int) -> int:
        """A place in the small vocabulary: equal for equal ones, and no other's."""
        tokens = sorted({v for _, v in self._of("token") if v >= self.vocabulary})
        taken = {v for _, v in self._of("token")} | {0}
        top = self.vocabulary // 2 if self.lent else self.vocabulary - 1  # the text has its own
        free = [k for k in range(top, 0, -1) if k not in taken]
        return free[tokens.index(value)]

    def _small_list(self, name: str, value: list, kept: Mapping[int, list[int]]) -> list | None:
        if self.roles[name] == "image":
            return [min(v, _PICTURE) for v in value]
        if self.stages and len(value) == self.stages:
            return self._stages(name, value)
        chosen = kept.get(len(value))
        if chosen is None:
            return None
        part = [value[k] for k in chosen]
        if self.roles[name] in ("width", "attended"):
            return [self._small(self.roles[name], v, kept) if _is_size(v) else v for v in part]
        return part

    def _stages(self, name: str, value: list) -> list:
        part = value[:_STAGES]
        if name == _COUNTED_IN_STAGES:
            return [min(v, 2) for v in part]
        role, heads = self.roles[name], self._heads_by_stage()
        if role in ("width", "heads") and heads:
            return [k * (self.head if role == "width" else 1) for k in heads]
        if role == "width":
            return [self.widths.get(v, v) for v in part]
        if role == "heads":
            return [self.profile.heads * v // value[0] for v in part]
        return [min(v, 2) for v in part] if role == "times" else part

    def _heads_by_stage(self) -> list[int]:
        """One head in the narrowest stage, one more in each that had more; none where widths or
        heads are not given for each stage."""
        lists = {self.roles[n]: v for n, v in self.fields.items() if self._is_by_stage(v)}
        if not {"width", "heads"} <= lists.keys():
            return []
        ranks = {v: k + 1 for k, v in enumerate(sorted({*lists["heads"]}))}
        return [ranks[v] for v in lists["heads"][:_STAGES]]

    def _is_by_stage(self, value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) == self.stages > 0

    def _kept_layers(self) -> dict[int, list[int]]:
        """For each number of layers the layers to keep: of each kind one, and two at least.

        The kind of a layer is what all lists of that length say of it.
        """
        found: dict[int, list[int]] = {}
        for count in {v for _, v in self._of("layers")}:
            lists = [v for v in self.fields.values()
                     if isinstance(v, (list, tuple)) and len(v) == count]  # fmt: skip
            seen: dict[str, list[int]] = {}
            for k in range(count):
                seen.setdefault(repr([v[k] for v in lists]), []).append(k)
            chosen = {k for layers in seen.values() for k in layers[: self.profile.layers]}
            chosen |= set(range(count)) if count <= 2 else set()
            chosen |= (
                {next((k for k in range(count) if k not in chosen), 0)}
                if len(chosen) < 2
                else set()
            )
            found[count] = sorted(chosen)
        return found
