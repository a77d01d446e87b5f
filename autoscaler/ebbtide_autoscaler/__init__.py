"""Who gets which GPU: signals, the pure policy, and the arbiter that carries its decisions out.

Pure: ``signals``, ``serving``, ``training``, ``policy`` (what should be), ``seen``, ``advance*`` (what has come
about), ``instruct`` (what to do next). Shell: ``arbiter`` (the Ray actor), ``fences``, ``executor``, ``journal``.
"""
