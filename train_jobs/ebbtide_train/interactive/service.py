"""``python -m ebbtide_train.interactive.service``: sessions that were submitted before it was ``run_interactive``.

Their submissions are kept with this name, and the pool submits them again after a loss.
"""

from ebbtide_train.run_interactive import main

if __name__ == "__main__":
    main()
