"""RadixTree: computed KV blocks by the tokens that lead to them.

An edge is one whole block of tokens. A tree is rooted by namespace (adapter, cache salt), so that
nothing is shared between namespaces. A child is found by its parent's number and its block's bytes: the dictionary
hashes them with Python's keyed hash and compares them byte by byte, so that no collision can be built. One dictionary
holds the children of all nodes: one for each node took most of a node's memory, and garbage collections of it.
"""

import heapq
import itertools
from collections.abc import Iterable, Sequence

from jaxinfer.engine.kv.block_pool import BlockPool

Namespace = tuple[str, str]


class Node:
    """One block of tokens. blocks holds a block id a KV group, 0 where the group has none.

    name: the bytes of its number, which no other node of the tree has or had. key: its parent's name and the block's
    bytes, or the namespace in a root. num_children: nodes whose parent it is. time is that of the last use.
    pins counts sequences that will extend the tree at this node. queued: a bit a KV group.
    """

    __slots__ = ("blocks", "depth", "key", "name", "num_children", "parent", "pins", "queued", "time")

    def __init__(self, parent: "Node | None", key: bytes | Namespace, number: int, blocks: tuple[int, ...]):
        self.parent = parent
        self.key = key
        self.name = number.to_bytes(8)
        # NOTE: a tuple of numbers is nothing that garbage collections look at.
        self.blocks = blocks
        self.depth = parent.depth + 1 if parent else 0
        self.num_children = 0
        self.time = 0
        self.pins = 0
        self.queued = 0


class RadixTree:
    """Blocks of all groups, evicted least recently used first.

    pools and windows have an entry a KV group; a window of None is full attention. Blocks of a full
    group leave with their node, leaves first; a windowed group may lose blocks anywhere.
    """

    def __init__(self, pools: Sequence[BlockPool], windows: Sequence[int | None], block_size: int):
        self._pools = pools
        self._windows = windows
        self._block_size = block_size
        self._roots: dict[Namespace, Node] = {}
        self._children: dict[bytes, Node] = {}
        self._numbers = itertools.count()
        self._nodes: list[dict[int, Node]] = [{} for _ in pools]
        self._heaps: list[list[tuple[int, int, int, Node]]] = [[] for _ in pools]
        self._ticket = itertools.count()
        self._clock = 0

    def root(self, namespace: Namespace) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, namespace, next(self._numbers), (0,) * len(self._pools))
        return root

    def match(self, namespace: Namespace, keys: Iterable[bytes]) -> list[Node]:
        """The longest path along `keys` (block bytes) whose blocks suffice to go on after it."""
        path: list[Node] = []
        node = self._roots.get(namespace)
        for key in keys:
            node = self._children.get(node.name + key) if node else None
            if node is None:
                break
            path.append(node)
        length = len(path)
        while length and not all(self._sees_window(path, length, group) for group in range(len(self._pools))):
            length -= 1
        return path[:length]

    def first_needed(self, length: int, group: int) -> int:
        """Index of the first block that a query at position `length * block_size` can see."""
        window = self._windows[group]
        return 0 if window is None else max(0, length * self._block_size - window + 1) // self._block_size

    def use(self, node: Node) -> None:
        """Marks the path from the root to `node` as used now."""
        self._clock += 1
        step: Node | None = node
        while step is not None:
            step.time = self._clock
            step = step.parent

    def extend(self, node: Node, key: bytes, blocks: tuple[int, ...]) -> Node:
        """The child of `node` along `key`, to which a pin of `node` moves. It is made of `blocks` (an id a group) where
        it, or its block, is missing."""
        edge = node.name + key
        child = self._children.get(edge)
        if child is None:
            child = self._children[edge] = Node(node, edge, next(self._numbers), blocks)
            node.num_children += 1
            added = blocks
        else:
            added = tuple(0 if old else new for old, new in zip(child.blocks, blocks, strict=True))
            child.blocks = tuple(old or new for old, new in zip(child.blocks, blocks, strict=True))
        child.time = node.time = self._clock
        child.pins += 1
        node.pins -= 1
        for group, block in enumerate(added):
            if block:
                self._nodes[group][block] = child
                self._pools[group].cache(block)
        return child

    def pin(self, node: Node) -> None:
        node.pins += 1

    def unpin(self, node: Node) -> None:
        node.pins -= 1
        self._prune(node)

    def became_evictable(self, group: int, block: int) -> None:
        """Must be called when the last reference to a block of the tree is dropped."""
        self._queue(self._nodes[group][block], group)

    def evict(self, group: int, count: int) -> None:
        """Frees at least `count` blocks of a group, which must be evictable."""
        pool = self._pools[group]
        goal = pool.num_free + count
        heap = self._heaps[group]
        while pool.num_free < goal:
            time, _, _, node = heapq.heappop(heap)
            node.queued &= ~(1 << group)
            if not self._can_go(node, group):
                continue
            if node.time != time:
                self._queue(node, group)
            elif self._windows[group] is None:
                self._drop_leaf(node)
            else:
                self._drop_block(node, group)
                self._prune(node)

    def blocks(self, group: int) -> list[int]:
        """Every block of a group that the tree holds."""
        return list(self._nodes[group])

    def _sees_window(self, path: Sequence[Node], length: int, group: int) -> bool:
        return all(node.blocks[group] for node in path[self.first_needed(length, group) : length])

    def _can_go(self, node: Node, group: int) -> bool:
        block = node.blocks[group]
        if not block or self._pools[group].references(block):
            return False
        return self._windows[group] is not None or not node.num_children

    def _queue(self, node: Node, group: int) -> None:
        if not node.queued >> group & 1 and self._can_go(node, group):
            node.queued |= 1 << group
            # A window needs the end of a path, so its beginning goes first.
            heapq.heappush(self._heaps[group], (node.time, node.depth, next(self._ticket), node))

    def _drop_leaf(self, node: Node) -> None:
        for group, block in enumerate(node.blocks):
            if block:
                self._drop_block(node, group)
        self._prune(node)

    def _drop_block(self, node: Node, group: int) -> None:
        block = node.blocks[group]
        node.blocks = (*node.blocks[:group], 0, *node.blocks[group + 1 :])
        del self._nodes[group][block]
        # NOTE: a sequence that waits with its parent's partial block may hold the windowed blocks of a node that got
        # them when the parent filled that block, and not the node's full block, which had come from another sequence.
        if self._pools[group].references(block):
            self._pools[group].uncache(block)
        else:
            self._pools[group].evict(block)

    def _prune(self, node: Node) -> None:
        """Removes nodes that hold nothing and lead nowhere, from `node` upwards."""
        while not (node.num_children or node.pins or any(node.blocks)):
            parent = node.parent
            if parent is None:
                del self._roots[node.key]  # type: ignore[arg-type]  # a root's key is its namespace
                return
            if self._children.pop(node.key, None) is not None:  # type: ignore[arg-type]  # bytes in all but roots
                parent.num_children -= 1
            node = parent
        for group in range(len(self._pools)):
            self._queue(node, group)
