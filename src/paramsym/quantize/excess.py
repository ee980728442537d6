"""The cycle of largest mean in a digraph, and potentials that prove it, by Howard's policies.

Every node chooses one edge. The best cycle of the chosen edges has a mean τ, which is a lower bound
of the largest; lengths of the chosen paths to it are potentials d. Where an edge u → v has
w − τ + d_v > d_u it is chosen instead. If no edge has, every cycle has a mean of at most τ, because
around it the sum of w − τ + d_v − d_u ≤ 0 is that of w − τ.

Source: Howard, Dynamic Programming and Markov Processes (1960); Cochet-Terrasson, Cohen, Gaubert,
McGettrick and Quadrat, "Numerical computation of spectral elements in max-plus algebra" (1998).
"""

from __future__ import annotations

import numpy as np

EXCESS = 1e-13  # an edge that gains less than this is none
_TURNS = 2000
_RAISES = 100


class Policies:
    """Howard's algorithm on fixed edges u → v whose weights change between calls.

    Args:
        nodes: how many there are.
        tail, head: u and v of each edge.
        potentials: where to start, of shape (nodes,).
    """

    def __init__(
        self, nodes: int, tail: np.ndarray, head: np.ndarray, potentials: np.ndarray
    ) -> None:
        self.nodes, self.order = nodes, np.argsort(tail, kind="stable")
        self.tail, self.head = tail[self.order], head[self.order]
        self.first = np.flatnonzero(np.r_[True, np.diff(self.tail) > 0][: len(self.tail)])
        self.counts = np.diff(np.r_[self.first, len(self.tail)])
        self.owners = self.tail[self.first]
        self.group = np.repeat(np.arange(len(self.first)), self.counts)
        self.potentials = potentials.copy()
        self.doublings = max(1, int(nodes).bit_length())
        self.choice: np.ndarray | None = None

    def worst(self, weights: np.ndarray) -> tuple[float, list[np.ndarray], bool]:
        """The largest mean τ of a cycle, the best cycles on the way, and whether τ is proved.

        A cycle is the numbers of its edges. τ is −inf where there is none. `potentials` are then
        d with w − τ + d_v ≤ d_u on every edge u → v, but for rounding.
        """
        w, d = weights[self.order], self.potentials
        if not len(w):
            return -np.inf, [], True
        chosen = self._best(w + d[self.head])[1] if self.choice is None else self.choice
        mean, found = -np.inf, []
        for _ in range(_TURNS):
            mean_here, cycle = self._best_cycle(w, chosen)
            if mean_here > mean:
                mean = mean_here
                found.append(self.order[cycle])
            level = mean if found else float(w.min()) - 1.0
            if found:
                root = int(self.tail[cycle[0]]) if len(cycle) else 0
                self._measure(w, chosen, root, level)
            values, choice = self._best(w - level + self.potentials[self.head])
            better = values > self.potentials[self.owners] + EXCESS
            if not better.any():
                self.choice = chosen
                return mean, found, True
            chosen = np.where(better, choice, chosen)
            self.potentials[self.owners[better]] = values[better]
        self.choice = chosen
        return mean, found, False

    def raised(self, start: np.ndarray, weights: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The least d ≥ `start` with w + d_v ≤ d_u on every edge, or `other` if it is far.

        It stays close to the start, where edges that are not here were far below their thresholds.
        """
        w, d = weights[self.order], start.copy()
        for _ in range(_RAISES):
            most = np.maximum.reduceat(w + d[self.head], self.first) if len(w) else np.zeros(0)
            if not (most > d[self.owners] + EXCESS).any():
                return d
            d[self.owners] = np.maximum(d[self.owners], most)
        return other

    def _best(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The largest value among the edges of each node, and the first edge that has it."""
        most = np.maximum.reduceat(values, self.first)
        at = np.flatnonzero(values == most[self.group])[::-1]
        choice = np.empty(len(self.first), dtype=np.int64)
        choice[self.group[at]] = at
        return most, choice

    def _following(self, choice: np.ndarray) -> np.ndarray:
        following = np.arange(self.nodes)
        following[self.owners] = self.head[choice]
        return following

    def _best_cycle(self, w: np.ndarray, choice: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean and the edges of the best cycle of a policy; −inf and none without any."""
        following = self._following(choice)
        edge = np.full(self.nodes, -1)
        edge[self.owners] = choice
        ends = following
        for _ in range(self.doublings):
            ends = ends[ends]
        best, cycle, seen = -np.inf, np.zeros(0, dtype=np.int64), set()
        for node in np.unique(ends).tolist():
            made = []
            while node not in seen and edge[node] >= 0:
                seen.add(node)
                made.append(edge[node])
                node = int(following[node])
            if made and float(w[made].mean()) > best:
                best, cycle = float(w[made].mean()), np.array(made)
        return best, cycle

    def _measure(self, w: np.ndarray, choice: np.ndarray, root: int, level: float) -> None:
        """Potentials of the nodes whose path leads to the root: the path's length from there."""
        following, length = self._following(choice), np.zeros(self.nodes)
        length[self.owners] = w[choice] - level
        following[root], length[root] = root, 0.0
        for _ in range(self.doublings):
            length = length + length[following]
            following = following[following]
        reached = following == root
        self.potentials[reached] = self.potentials[root] + length[reached]
