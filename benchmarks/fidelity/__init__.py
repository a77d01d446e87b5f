"""The simulator against live runs of the same pool: ``python -m benchmarks.fidelity``.

``windows`` says what is asked when, ``live`` runs a pool through it, ``calibrate`` reads times and speeds from one run,
``replay`` has the simulator play another with them, ``compare`` puts both beside each other.
"""
