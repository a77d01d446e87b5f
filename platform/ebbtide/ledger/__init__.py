"""The durable record of what the pool decided and saw: an append-only log per epoch, its readers, and an index.

Knows files, threads and SQLite; knows nothing of Ray, of policy, or of what a record means. ``epoch_log`` writes,
``reader`` says which records count, ``sqlite_index`` answers questions.
"""
