"""Shared devices: the lease, the pool of warm judges on this machine, and the client of one elsewhere.

``lease``    exclusive use of one device; held by whatever touches it
``contract`` what a caller sees: requests, jobs, metrics, the ``Pool`` protocol
``local``    the pool of this machine: judges in processes of their own, one device each
``client``   the same protocol over HTTP (``cuda-agent serve``), standard library only
``remote``   verdicts for ``judge``, ``optimize`` and ``eval``: here, or by a pool
"""
