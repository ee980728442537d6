"""The cycle of largest mean in a digraph, and potentials that prove it, by Howard's policies.

Every node chooses one edge. The best cycle of the chosen edges has a mean τ, which is a lower bound
of the largest; lengths of the chosen paths to it are potentials d. Where an edge u → v has
w − τ + d_v > d_u it is chosen instead. If no edge has, every cycle has a mean of at most τ, because
around it the sum of w − τ + d_v − d_u ≤ 0 is that of w − τ.

What an edge is short of, d_u − d_v − w + τ ≥ 0, is then its slack. From a root on the best cycle
the chosen edges lead back from everywhere without any, so that the path of least slack to an edge
closes to a walk that is hardly worse: the best through each kind of edge foretell which cycles
matter when the weights change.

Source: Howard, Dynamic Programming and Markov Processes (1960); Cochet-Terrasson, Cohen, Gaubert,
McGettrick and Quadrat, "Numerical computation of spectral elements in max-plus algebra" (1998).
"""

from __future__ import annotations

from operator import itemgetter

import numpy as np

EXCESS = 1e-13  # an edge that gains less than this is none
_TURNS = 2000
_RAISES = 100
_SLACK = 0.4


class Policies:
    """Howard's algorithm on fixed edges u → v whose weights change between calls.

    Inside, the nodes with edges come first: the k-th of them is the tail of the k-th group of edges
    and chooses the edge `choice[k]`.

    Args:
        nodes: how many there are.
        tail, head: u and v of each edge.
        potentials: where to start, of shape (nodes,).
    """

    def __init__(
        self, nodes: int, tail: np.ndarray, head: np.ndarray, potentials: np.ndarray
    ) -> None:
        self.order = np.argsort(tail, kind="stable")
        tail = tail[self.order]
        starts = np.ones(len(tail), dtype=bool)
        np.not_equal(tail[1:], tail[:-1], out=starts[1:])
        self.first, self.tail = np.flatnonzero(starts), np.cumsum(starts) - 1
        self.owners = len(self.first)
        without = np.ones(nodes, dtype=bool)
        without[tail] = False
        self.nodes = np.concatenate((tail[self.first], np.flatnonzero(without)))
        self.place = np.empty(nodes, dtype=np.int64)
        self.place[self.nodes] = np.arange(nodes)
        self.head = self.place[head[self.order]]
        self.d = potentials[self.nodes]
        self.level, self.root = -np.inf, 0
        self.weights = np.zeros(0)
        self.choice: np.ndarray | None = None

    @property
    def potentials(self) -> np.ndarray:
        """d, of shape (nodes,)."""
        return self.d[self.place]

    def worst(self, weights: np.ndarray) -> tuple[float, list[np.ndarray], bool]:
        """The largest mean τ of a cycle, the best cycles on the way, and whether τ is proved.

        A cycle is the numbers of its edges. τ is −inf where there is none. `potentials` are then
        d with w − τ + d_v ≤ d_u on every edge u → v, but for rounding.
        """
        w = self.weights = weights[self.order]
        self.level, found = -np.inf, []
        if not len(w):
            return self.level, found, True
        choice = self.choice
        if choice is None:
            values = w + self.d[self.head]
            choice = self._best(values, np.maximum.reduceat(values, self.first))
        own = self.d[: self.owners]  # a view
        for _ in range(_TURNS):
            self.choice = choice
            mean, cycle = self._followed(choice)
            if mean > self.level:
                self.level = mean
                found.append(self.order[cycle])
            values = self.d[self.head]
            values += w
            values -= self.level if found else float(w.min()) - 1.0
            most = np.maximum.reduceat(values, self.first)
            better = most > own + EXCESS
            if not better.any():
                return self.level, found, True
            choice = np.where(better, self._best(values, most), choice)
            np.copyto(own, most, where=better)
        return self.level, found, False

    def rivals(self, kinds: np.ndarray) -> list[np.ndarray]:
        """For each kind of edge, a closed walk through one that is little worse than the worst.

        They are the best walks through the root by edges from which the policy leads back to it.

        Args:
            kinds: a number for each edge.
        """
        choice = self.choice
        if choice is None or self.level == -np.inf:
            return []
        slack = self.d[self.tail] - self.d[self.head]
        slack -= self.weights - self.level
        near = np.flatnonzero(slack < _SLACK)
        tail, head, slack = self.tail[near], self.head[near], np.maximum(slack[near], 0.0)
        least, before = np.full(len(self.d), np.inf), np.full(len(self.d), -1)
        least[self.root] = 0.0
        for _ in range(len(self.d)):
            through = least[tail] + slack
            closer = np.flatnonzero(through < least[head])
            if not len(closer):
                break
            closer = closer[np.argsort(-through[closer])]  # of several to one node the last stays
            before[head[closer]] = near[closer]
            least[head[closer]] = through[closer]
        through = least[tail] + slack
        reached = np.flatnonzero(through < np.inf)
        reached = reached[np.argsort(-through[reached])]
        edges = near[reached]
        best = dict(zip(kinds[self.order[edges]].tolist(), edges.tolist(), strict=True))
        walks = [self._closed(edge, before, choice) for edge in best.values()]
        return [self.order[walk] for walk in walks if walk]

    def _closed(self, edge: int, before: np.ndarray, choice: np.ndarray) -> list[int]:
        """The walk from the root to an edge and from there back; empty where it leads elsewhere."""
        made, at = [edge], int(self.tail[edge])
        while at != self.root and len(made) <= self.owners:
            made.append(int(before[at]))
            at = int(self.tail[made[-1]])
        at = int(self.head[edge])
        while at != self.root and len(made) <= 2 * self.owners and at < self.owners:
            made.append(int(choice[at]))
            at = int(self.head[made[-1]])
        return made if at == self.root else []

    def raised(self, start: np.ndarray, weights: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The least d ≥ `start` with w + d_v ≤ d_u on every edge, or `other` if it is far.

        It stays close to the start, where edges that are not here were far below their thresholds.
        """
        if not len(weights):
            return start
        w, d = weights[self.order], start[self.nodes]
        own = d[: self.owners]
        for _ in range(_RAISES):
            most = np.maximum.reduceat(w + d[self.head], self.first)
            if not (most > own + EXCESS).any():
                return d[self.place]
            np.maximum(own, most, out=own)
        return other

    def _best(self, values: np.ndarray, most: np.ndarray) -> np.ndarray:
        """The first edge of each node that has the largest value."""
        at = np.flatnonzero(values == most[self.tail])[::-1]
        choice = np.empty(self.owners, dtype=np.int64)
        choice[self.tail[at]] = at
        return choice

    def _followed(self, choice: np.ndarray) -> tuple[float, list[int]]:
        """The mean and the edges of the best cycle of a policy; −inf and none without any.

        Nodes whose path leads there get its length as potentials, and one on it is the root.
        """
        best, cycle = self._cycle(choice, self.root, set())
        while True:
            if cycle:
                self.root = int(self.tail[cycle[0]])
            ends, length = self._paths(choice, max(best, self.level))
            astray = (ends != self.root) & (ends < self.owners)
            if not astray.any():
                break
            seen = {self.root}
            others = [self._cycle(choice, k, seen) for k in np.unique(ends[astray]).tolist()]
            mean, other = max(others, key=itemgetter(0))
            if mean <= best:
                break
            best, cycle = mean, other
        if cycle:
            np.copyto(self.d, self.d[self.root] + length, where=ends == self.root)
        return best, cycle

    def _paths(self, choice: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Where the path of each node ends that stops at the root, and its length there."""
        ends, length = np.arange(len(self.d)), np.zeros(len(self.d))
        ends[: self.owners] = self.head[choice]
        length[: self.owners] = self.weights[choice] - level
        ends[self.root], length[self.root] = self.root, 0.0
        for _ in range(len(ends).bit_length()):
            further = ends[ends]
            if (further == ends).all():
                break
            length += length[ends]
            ends = further
        return ends, length

    def _cycle(self, choice: np.ndarray, node: int, seen: set[int]) -> tuple[float, list[int]]:
        """The mean and the edges of the cycle that a node leads to, unless it was seen."""
        walk: dict[int, int] = {}
        while node not in walk and node not in seen and node < self.owners:
            walk[node] = int(choice[node])
            node = int(self.head[walk[node]])
        seen.update(walk)
        if node not in walk:
            return -np.inf, []
        made = [*walk.values()][[*walk].index(node) :]
        return float(self.weights[made].sum()) / len(made), made
