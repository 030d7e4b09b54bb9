"""Ports: is one free, who has it, which one did a process take."""

from __future__ import annotations

import errno
import socket

import psutil

from hotset.core.errors import ConfigProblem, MachineProblem

__all__ = ["check_port", "listening_port"]


def listening_port(pid: int, wanted: int) -> int:
    """The port on which this very process listens, from the kernel; 0 if none yet.

    Asking the kernel and not the log: a model file's own texts appear in the log.
    """
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return 0
    ports = [_local_port(c) for c in connections if c.status == psutil.CONN_LISTEN]
    return next((port for port in ports if port == wanted or not wanted), 0)


def _local_port(connection: object) -> int:
    """Port of the near end; psutil gives an empty tuple where there is none."""
    return int(getattr(getattr(connection, "laddr", ()), "port", 0))


def check_port(host: str, port: int) -> None:
    """Refuse a taken port before anything is started, naming who has it.

    Raises:
        MachineProblem: the address cannot be bound.
        ConfigProblem: the host is no name at all.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # With SO_REUSEADDR a bind beside a listener can succeed; a listen cannot.
            probe.listen(1)
        except (UnicodeError, TypeError) as error:  # not even a name, after its encoding
            raise ConfigProblem(
                f"host is '{host}', which is no host name; give an address"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise MachineProblem(
                    f"port {port} is in use{_holder(port)}; choose another with --port"
                ) from error
            raise MachineProblem(
                f"cannot listen on {host} port {port}: {error.strerror};"
                " choose another with --host and --port"
            ) from error


def _holder(port: int) -> str:
    """` by pid 4121 (ollama)`, where the system lets us see it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and _local_port(connection) == port
                and connection.pid
            ):
                return f" by pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""
