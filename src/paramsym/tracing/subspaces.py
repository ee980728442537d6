"""What nobody reads, and what is never there: two subspaces of every block.

*Unread* is found by one backward pass: a change of a block is unseen if every reader's output
either does not show it or shows it where nobody looks; over several readers the spans meet.
*Absent* is found by one forward pass: w·x = κ on all data, from what each primitive says of its
output. Both are theorems about the network at any parameters, so that they hold as well after the
parameters have moved, as long as those that spell the directions stay.
"""

from __future__ import annotations

from paramsym.primitives.base import known_sum
from paramsym.primitives.directions import Absence, Unseen, meet, minimal, slots_of
from paramsym.primitives.joint import Joint, Key
from paramsym.primitives.words import Offset, fresh
from paramsym.tracing.circuit import Circuit

_LIMIT = 12  # patterns per block that are worth keeping


class Absent:
    """Directions that blocks never have."""

    def __init__(self, circuit: Circuit):
        self.found: dict[Key, list[Absence]] = {}
        for joint in circuit.joints:
            if circuit.writer(joint.out.key) is not joint:
                continue
            known = [[] if joint.is_partial else self.found.get(key, []) for key in joint.keys]
            # what others read as longer slots of the same stride is counted in another way there
            whole = joint.whole(-1)
            made = joint.op.absent(joint, known)
            told = {(a.strides, a.profile) for a in made}
            made += [a for a in _of_total(joint) if (a.strides, a.profile) not in told]
            found = [a for a in made if whole.issuperset(a.strides)]
            if found:
                self.found[joint.out.key] = found[:_LIMIT]

    def __getitem__(self, key: Key) -> list[Absence]:
        return self.found.get(key, [])


def _of_total(joint: Joint) -> list[Absence]:
    if (total := joint.out.tensor.total) is None:
        return []
    return known_sum(joint, total[:1], (Offset(total[1], (), fresh()),))


class Unread:
    """Changes of blocks that nobody sees, as patterns."""

    def __init__(self, circuit: Circuit, absent: Absent):
        self.circuit, self.absent = circuit, absent
        self.known: dict[Key, list[Unseen]] = {}
        self.passed: dict[tuple[int, int], list[Unseen]] = {}  # by joint and input
        for joint in reversed(circuit.joints):  # what is written last has no reader left to ask
            self[joint.out.key]

    def __getitem__(self, key: Key) -> list[Unseen]:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._meet(key)
        return found

    def _meet(self, key: Key) -> list[Unseen]:
        """The meet over all readers."""
        if self.circuit.is_seen(key):
            return []
        if key in self.circuit.dropped:
            return [{}]
        found: list[Unseen] | None = None
        for joint, k in self.circuit.readers[key]:
            new = self.through(joint, k)
            if found is not None:
                new = meet(found, new, joint.inputs[k].sizes)
            found = new[:_LIMIT]
            if not found:
                break
        return found or []

    def through(self, joint: Joint, k: int) -> list[Unseen]:
        """What this reader does not see."""
        found = self.passed.get((id(joint), k))
        if found is None:
            found = self.passed[id(joint), k] = self._through(joint, k)
        return found

    def _through(self, joint: Joint, k: int) -> list[Unseen]:
        below = [] if joint.is_partial else self[joint.out.key]
        if {} in below and joint.op.is_total(k):
            return [{}]
        if self.circuit.is_window(joint.out):
            below = []  # what is alike here is not alike in all of the block
        found = joint.op.unread(joint, k, below, self.absent.found)
        return minimal([e for e in found if _is_whole(joint, k, e)])


def _is_whole(joint: Joint, k: int, pattern: Unseen) -> bool:
    """Whether the slots of all kernels and matrices are read as a whole, copies among them."""
    named = {
        s
        for along, profile in pattern.items()
        if profile.kernel or profile.transposed
        for s in (*slots_of(along), *(tied for c in profile.kernel for _, tied in c.batch))
    }
    return joint.whole(k) >= named
