"""Training jobs that step aside and lose nothing.

An author needs `current_session` only; see ``ebbtide_train.session`` for what it gives and ``ebbtide_train.examples``
for a whole job. Importing this imports neither torch nor Ray.
"""

from ebbtide_train.session.current import current_session

__all__ = ["current_session"]
