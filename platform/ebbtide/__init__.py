"""The ground floor of ebbtide: words, state, ledger, storage, agents and the command line.

It knows no policy (``ebbtide_autoscaler``), no vLLM (``ebbtide_serve``) and no Ray Train (``ebbtide_train``):
those three stand on it and never import each other.
"""
