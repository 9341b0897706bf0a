"""Acts on real virtual machines: durable steps over a driver, the same for QEMU and libvirt.

`driver` is what a platform implements; `steps` has the steps and decisions; `move` and `in_place` decide, as pure
functions, what an act does next; `acts` carries that out with `operations`, and each step is in the `journal` before it
takes effect. May import `core` and leaf modules. Start reading at `driver`, then `move`.
"""
