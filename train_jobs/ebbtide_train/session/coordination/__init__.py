"""How the ranks of a gang agree: directives and their gate, the process group, and files where there is no group."""
