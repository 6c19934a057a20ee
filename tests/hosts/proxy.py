"""A connection between two hosts that a test can cut, damage, or let fall silent."""

import contextlib
import socket
import threading

_SHORTEST = 400
"""Bytes of what is damaged: heartbeats and what HTTP/2 says of itself are shorter than a packed step."""


class Proxy:
    """Forwards TCP connections to HOST:PORT. address: its own; port: of it, by default a free one."""

    def __init__(self, address: str, port: int = 0):
        host, _, target = address.rpartition(":")
        self._target = host, int(target)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._flowing = threading.Event()
        self._flowing.set()
        self._damaging = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Nothing arrives from now on, either way, as when a machine has no power."""
        self._flowing.clear()

    def flip(self) -> None:
        """One bit of the next message that comes from the target arrives otherwise."""
        self._damaging.set()

    def cut(self) -> None:
        """Ends all connections, and takes no more."""
        _end(self._listener)
        self.drop()

    def drop(self) -> None:
        """Ends all connections that there are; what is in them is lost. Others may come, and flow."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            _end(each)
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                _end(near)  # nobody is there now
                continue
            self._sockets += [near, far]
            for source, target, comes in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._forward, args=(source, target, comes), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, comes: bool) -> None:
        """comes: from the target."""
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                if comes and len(data) >= _SHORTEST and self._damaging.is_set():
                    self._damaging.clear()
                    middle = len(data) // 2
                    data = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                _end(each)


def _end(connection: socket.socket) -> None:
    """Ends a connection, also where another thread waits for it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
