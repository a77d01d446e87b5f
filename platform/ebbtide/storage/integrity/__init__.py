"""Whether bytes are right: hashes of chunks, their index, and the check of a chunk, which is read twice if need be."""
