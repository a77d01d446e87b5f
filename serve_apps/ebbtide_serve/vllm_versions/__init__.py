"""Which versions of vLLM an engine can be, and what differs between them.

``supported`` has the range, ``compat`` the code for what differs, ``facts`` the names that each version has. Only
``compat`` and ``collect`` import vLLM.
"""
