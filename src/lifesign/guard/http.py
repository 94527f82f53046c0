"""The four pages of guard: /livez /readyz /metrics /state. Read only, loopback unless told otherwise, in a thread.

A port that is taken, or a server that fails, never touches the engine: guard says so and goes on without pages.
"""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING

from lifesign.guard.board import Board

if TYPE_CHECKING:
    from starlette.applications import Starlette


def build_app(board: Board) -> Starlette:
    """The application over a board."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def livez(request: Request) -> Response:
        status, line = board.livez()
        return PlainTextResponse(line + "\n", status)

    def readyz(request: Request) -> Response:
        status, line = board.readyz()
        return PlainTextResponse(line + "\n", status)

    def metrics(request: Request) -> Response:
        return Response(board.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def state(request: Request) -> Response:
        return JSONResponse(board.snapshot())

    routes = [Route(f"/{page.__name__}", page, methods=["GET"]) for page in (livez, readyz, metrics, state)]
    return Starlette(routes=routes)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError; `explain_bind` makes a sentence of it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(64)
    except OSError:
        sock.close()
        raise
    return sock


def explain_bind(host: str, port: int, error: OSError) -> str:
    """Why the pages can't be served there, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"{host}:{port} is taken by another program: no HTTP pages; choose another with --http HOST:PORT"
    if error.errno == errno.EACCES:
        return f"not allowed to listen on {host}:{port} (ports below 1024 need root): no HTTP pages; choose another with --http"
    return f"can't listen on {host}:{port} ({error.strerror or error}): no HTTP pages; see --http"


class HttpThread:
    """Serves a board until `stop`."""

    def __init__(self, board: Board, sock: socket.socket) -> None:
        import uvicorn

        config = uvicorn.Config(
            build_app(board), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1,
            limit_concurrency=64, loop="asyncio", http="h11", ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._sock = sock
        self._thread = threading.Thread(target=self._run, name="lifesign-http", daemon=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._sock])

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop within a second or so."""
        self._server.should_exit = True
        self._thread.join(2.0)
