"""Opening the live page in a browser, and the message without the extra."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.pages.live.browser import open_in_browser
from fedssl.pages.live.server import need_dashboard

URL = "http://127.0.0.1:8800/?token=secret"


def test_the_token_is_in_a_private_file_and_not_in_the_command_of_the_browser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    def browse(uri: str) -> bool:
        opened.append(uri)
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    open_in_browser(URL)
    (uri,) = opened
    assert "secret" not in uri
    page = Path(unquote(urlsplit(uri).path))
    assert f'<a href="{URL}">' in page.read_text()
    assert page.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fails", [True, False])
def test_without_a_browser_the_user_is_asked_to_open_the_url(
    fails: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def browse(uri: str) -> bool:
        if fails:
            raise webbrowser.Error
        return False

    monkeypatch.setattr(webbrowser, "open", browse)
    open_in_browser(URL)
    assert capsys.readouterr().err == "no browser was found: open the URL yourself\n"


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with raises(ConfigError):
        need_dashboard()
