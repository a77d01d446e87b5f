"""What the failed ranks of a gang said last: for the person who asks why."""

from collections.abc import Callable, Collection, Sequence

from ebbtide_train.controller.gang import Member
from ebbtide_train.controller.remote_processes import tail_there
from ebbtide_train.output_tail import TAIL_CHARS, cut_tail, tail

_RANKS = 3  # at most: the others say the same


def failed_rank_output(
    members: Sequence[Member],
    failed: Collection[int],
    *,
    here: str,
    there: Callable[..., str] = tail_there,
    chars: int = TAIL_CHARS,
) -> str:
    """The last lines that the first few failed ranks printed, ``chars`` in all at most. May take seconds.

    Args:
        members: all ranks, in order.
        failed: ranks; those below 0 are not ranks.
        here: the node of this process.
        there: reads files of another node.
    """
    ranks = [rank for rank in sorted(failed) if 0 <= rank < len(members)][:_RANKS]
    parts = []
    for rank in ranks:
        member, head = members[rank], f"-- rank {rank} --\n"
        share = chars // len(ranks) - len(head) - 1
        read = tail if member.node == here else lambda paths, chars, node=member.node: there(node, paths, chars=chars)
        if text := read(member.printed, chars=share):
            parts.append(head + text)
    return cut_tail("\n".join(parts), chars)
