import hashlib
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from error_messages import raises

from fedssl.core.errors import DataError
from fedssl.data.download import (
    OfficialFile,
    download,
    find,
    find_or_download,
    without_downloads,
)

CONTENT = bytes(range(256)) * 2000


class Handler(BaseHTTPRequestHandler):
    """/whole serves the content; /short breaks off in the middle of it; the rest does not exist."""

    def do_GET(self):  # the library's name
        known = self.path in ("/whole", "/short")
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(CONTENT) if known else 0))
        self.end_headers()
        if known:
            self.wfile.write(CONTENT if self.path == "/whole" else CONTENT[:1000])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def names_below(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_missing_file_is_downloaded_checked_and_then_found(server, tmp_path, kind):
    digest = f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    messages = []
    path = find_or_download(
        tmp_path, "set", OfficialFile("a.bin", f"{server}/whole", digest), messages.append
    )
    assert path == tmp_path / "set" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert names_below(tmp_path) == ["a.bin"]
    assert messages == [f"downloading {server}/whole"]
    # The second time, the network is not used.
    unreachable = OfficialFile("a.bin", "http://127.0.0.1:9/none", digest)
    assert find_or_download(tmp_path, "set", unreachable, messages.append) == path


@pytest.mark.parametrize("place", ["whole", "short"])
def test_a_wrong_checksum_is_refused_and_the_file_not_kept(server, tmp_path, place):
    file = OfficialFile("a.bin", f"{server}/{place}", "md5:" + "0" * 32)
    with raises(DataError):
        download(file, tmp_path / "a.bin", lambda _: None)
    assert names_below(tmp_path) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.bin", "file:///etc/hostname", "SERVER/none"])
def test_a_failed_download_names_the_address_and_the_place_of_the_file(server, tmp_path, url):
    file = OfficialFile("a.bin", url.replace("SERVER", server), "md5:" + "0" * 32)
    with pytest.raises(DataError) as failure:
        find_or_download(tmp_path, "set", file, lambda _: None)
    message = str(failure.value)
    assert f"get it from {file.url} and put it at {tmp_path / 'set' / 'a.bin'}" in message
    assert "\n" not in message
    assert names_below(tmp_path) == []


def test_files_are_found_in_the_root_its_folder_and_elsewhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for path in (tmp_path / "set" / "b", elsewhere / "a", elsewhere / "b"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert find(tmp_path, "set", ["b"], [elsewhere]) == tmp_path / "set" / "b"
    assert find(tmp_path, "set", ["a", "b"], [elsewhere]) == elsewhere / "a"
    assert find(tmp_path, "set", ["a"]) is None


def test_nothing_is_downloaded_where_downloads_are_forbidden(server, tmp_path):
    digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    file = OfficialFile("a.bin", f"{server}/whole", digest)
    with without_downloads(), pytest.raises(DataError, match="nothing is downloaded here"):
        download(file, tmp_path / "a.bin", print)
    assert names_below(tmp_path) == []
    download(file, tmp_path / "a.bin", lambda line: None)
    assert names_below(tmp_path) == ["a.bin"]
