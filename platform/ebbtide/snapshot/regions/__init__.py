"""Host memory that outlives the process that filled it: a file on the node's tmpfs for each rank, with its own books.

``header`` is what a region says of itself, ``region_states`` how it may change, ``region`` the borrower's side,
``region_view`` what all others may see of it. Knows neither Ray nor who lends
(docs/decisions/012-host-memory-in-tmpfs.md).
"""
