"""Guards: conditions that keep a promise, and the tests that fail when a condition is taken out.

In the source a comment names the condition; in the tests a marker names the guards that a test proves::

    if node in draining:  # guard: no slot of a draining node is free

    @pytest.mark.proves("no slot of a draining node is free")
    def test_nothing_is_granted_on_a_node_that_drains(): ...

Read in this order: `comments` finds guards, `mutations` takes one out, `proofs` finds tests, `check` matches the two,
`trial` runs a test without its guard, `__main__` is the command, `page` writes docs/guards.md.
"""
