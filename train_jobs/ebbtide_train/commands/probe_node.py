"""Reading a node for ``ebbtide probe`` by a small Ray task on it."""

from ebbtide.diagnostics.probe.node_reading import NodeAsk, NodeReading, read_node

START_S = 30.0  # the task may have to start a process there, which imports us: 3-5 s, on a busy node more


def read_there(node: str, ask: NodeAsk) -> NodeReading | str:
    """What that node reads, or a sentence that says why nobody there could."""
    import ray  # noqa: PLC0415 - half a second, for which help and completion would wait
    from ray.exceptions import GetTimeoutError, RayError  # noqa: PLC0415

    there = ray.remote(num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": node})(read_node)
    try:
        found: NodeReading = ray.get(there.remote(ask), timeout=START_S)
    except GetTimeoutError:
        return f"node {node[:8]} did not answer within {START_S:g} s; is it busy, or gone? see `ebbtide status`"
    except RayError as error:
        return f"node {node[:8]} could not be read: {str(error).splitlines()[-1]}"
    return found
