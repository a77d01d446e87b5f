"""What a bare GPU machine needs, as files to carry there: ``make gpu-bundle DIR=/tmp/bundle``.

It serves one proof on one machine and is no way to install ebbtide. ``plan`` says what is in it and what is left out,
``site`` puts it together from the package index, ``prune`` makes it small, ``parts`` packs it, ``unpack`` is the script
that goes along, ``proof`` imports everything from what was unpacked, on a machine without a GPU.
"""
