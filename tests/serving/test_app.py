import asyncio
import gc
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")
from starlette.requests import Request
from starlette.testclient import TestClient

from phmctl.serving import server
from phmctl.serving.server import LOCAL_NAMES, MAX_BODY, Service, build_app
from tests.serving.fake import FakeModel, as_json, service, until
from tests.serving.processes import fake_server

JSON = {"content-type": "application/json"}
SECONDS = 10


def client(served: Service | None = None, **settings) -> TestClient:
    return TestClient(build_app(served or service(), **settings))


def post(body, path: str = "/translate", served: Service | None = None, headers=JSON):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client(served).post(path, content=content, headers=headers)


def error_of(response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    return response.json()["error"]


# ------------------------------------------------------------------------------------------------------- answers


def test_texts_are_translated_in_order_with_the_models_or_the_given_options() -> None:
    response = post({"text": "ein hund"}).json()
    assert response == {"model": "fake/real/v001", "answers": [{"translations": [as_json("ein hund")], "cut": False}]}
    answers = post({"texts": ["b", "", "a"], "beam": 3, "alpha": 1, "n_best": 2}).json()["answers"]
    texts = [[translation["text"] for translation in answer["translations"]] for answer in answers]
    assert texts == [["B/3/0", "B/3/1"], ["/3/0", "/3/1"], ["A/3/0", "A/3/1"]]
    assert answers[0]["translations"][1]["score"] == -1.0
    for text, line in (("a\nb\r\nc", "a b c"), ("größe 🐕", "größe 🐕")):
        assert post({"text": text}).json()["answers"][0]["translations"] == [as_json(line)]
    assert "has /, /health, /translate, /score" in error_of(post({"text": "a"}, "/classify"), 404)


def test_pairs_are_scored() -> None:
    assert post({"source": "ab", "target": "c"}, "/score").json()["answers"] == [{"log_prob": -3.0}]
    answers = post({"sources": ["ab", "d"], "targets": ["c", ""]}, "/score").json()["answers"]
    assert answers == [{"log_prob": -3.0}, {"log_prob": -1.0}]
    answers = post({"sources": ["", ""], "targets": ["c", ""]}, "/score").json()["answers"]
    assert answers == [{"log_prob": None}, {"log_prob": 0.0}]


def classifier(texts: int = 1) -> Service:
    return service(FakeModel(methods=("classify",), texts=texts))


def test_texts_and_pairs_are_labelled() -> None:
    answers = post({"texts": ["abc", " ", "a" * 19]}, "/classify", classifier()).json()["answers"]
    assert answers[0] == {"label": "short", "probabilities": {"long": 0.75, "short": 0.25}, "cut": False}
    assert answers[1] == {"label": None, "probabilities": {}, "cut": False}  # an empty text has no label
    assert answers[2]["label"] == "long"
    answers = post({"texts": [["ab", "c"], ["a", ""]]}, "/classify", classifier(2)).json()["answers"]
    assert [answer["probabilities"]["short"] for answer in answers] == [0.25, 0.5]
    for text in ("ab", ["a"], ["a", "b", "c"]):
        assert "text" in error_of(post({"text": text}, "/classify", classifier(2)), 400)


def test_requests_of_many_clients_share_batches() -> None:
    model = FakeModel()
    model.gate.clear()
    served = service(model)
    with client(served) as http, ThreadPoolExecutor(20) as pool:
        bodies = [{"text": f"t{number}", "beam": 1 + number % 2} for number in range(20)]
        futures = [pool.submit(http.post, "/translate", json=body) for body in bodies]
        until(lambda: served.batcher.queued() + served.batcher.running == 20)
        model.gate.set()
        for body, future in zip(bodies, futures, strict=True):
            answers = future.result(SECONDS).json()["answers"]
            assert answers == [{"translations": [as_json(body["text"], beam=body["beam"])], "cut": False}]
    # the first text alone, perhaps a second of its beam size, then one batch of each beam size
    assert len(model.batches) <= 4


# -------------------------------------------------------------------------------------------------- long texts


def test_a_text_above_the_token_limit_is_413_or_truncated() -> None:
    long = " ".join("abcdefghi")
    message = error_of(post({"texts": ["a", long]}), 413)
    assert "text 2 has 9 tokens" in message
    assert '"cut": true' in message
    answers = post({"texts": ["a", long], "cut": True}).json()["answers"]
    assert [answer["cut"] for answer in answers] == [False, True]
    assert post({"text": long}, served=service(cut=True)).json()["answers"][0]["cut"] is True
    error_of(post({"text": long, "cut": False}, served=service(cut=True)), 413)
    error_of(post({"source": long, "target": "a"}, "/score", service(cut=True)), 413)
    error_of(post({"source": "a", "target": long}, "/score", service(cut=True)), 413)


def test_a_body_above_the_limit_is_413() -> None:
    body = json.dumps({"text": "a"}).encode()
    assert post(body.ljust(MAX_BODY)).status_code == 200
    assert "larger than" in error_of(post(body.ljust(MAX_BODY + 1)), 413)


# --------------------------------------------------------------------------------------------------- bad input

BAD = {  # path, body, and the place or cause in the error
    "no JSON": ("/translate", b"{", "JSON"),
    "NaN": ("/translate", b'{"text": "a", "alpha": NaN}', "alpha: "),
    "nested": ("/translate", b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
    "an unknown key": ("/translate", {"text": "a", "baem": 3}, "baem: "),
    "both": ("/translate", {"text": "a", "texts": ["b"]}, '"text" or "texts"'),
    "beam 65": ("/translate", {"text": "a", "beam": 65}, "beam: "),
    "an error that only the model detects": ("/translate", {"text": "REFUSE"}, "REFUSE"),
    "no target": ("/score", {"source": "a"}, '"source" and "target"'),
    "unequal numbers": ("/score", {"sources": ["a"], "targets": []}, '"sources" and "targets"'),
    "cut of a score": ("/score", {"source": "a", "target": "b", "cut": True}, "cut: "),
}


@pytest.mark.parametrize(("path", "body", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_400_with_its_reason(path: str, body, message: str) -> None:
    assert message in error_of(post(body, path), 400)


def test_unknown_paths_and_methods_and_types() -> None:
    http = client()
    assert "/translate" in error_of(http.get("/translat"), 404)
    assert error_of(http.get("/translate"), 405)
    assert http.get("/translate").headers["allow"] == "POST"
    assert error_of(http.post("/health"), 405)
    for content_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = http.post("/translate", content=b'{"text": "a"}', headers={"content-type": content_type})
        assert "Content-Type: application/json" in error_of(response, 415)
    assert post({"text": "a"}, headers={"content-type": "application/json; charset=utf-8"}).status_code == 200


# ------------------------------------------------------------------------------------------- health and the page


def test_health_describes_the_model_and_counts_texts() -> None:
    served = service()
    post({"texts": ["a", "b"]}, served=served)
    health = client(served).get("/health").json()
    assert (health["model"], health["task"]) == ("fake/real/v001", "translation")
    assert health["answers"] == ["/translate", "/score"]
    assert (health["limits"]["tokens"], health["limits"]["cut"]) == (8, False)
    assert [health["counts"][name] for name in ("answered", "failed", "dropped")] == [2, 0, 0]
    assert "secret" not in json.dumps(health)


def test_the_page_allows_nothing_but_its_own_script() -> None:
    response = client().get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "; script-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "http" not in response.text.replace("http-equiv", "").replace("http://www.w3.org", "")
    for writer in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"):  # a text may hold any markup
        assert writer not in response.text


def test_no_response_allows_other_sites() -> None:
    with fake_server() as server, httpx.Client(base_url=server.url) as http:  # uvicorn adds a header to all responses
        headers = {"origin": "http://elsewhere.example", "access-control-request-method": "POST"}
        responses = [http.options("/translate", headers=headers), http.get("/", headers=headers), http.get("/health")]
        for response in responses:
            assert not [name for name in response.headers if name.startswith("access-control")]
            assert response.headers["x-content-type-options"] == "nosniff"
        assert http.options("/translate", headers=headers).status_code == 405


def test_only_requests_to_its_own_names_are_answered() -> None:
    http = client(names=(*LOCAL_NAMES, "mt.example"))
    for host in ("localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]", "MT.example"):
        assert http.get("/health", headers={"host": host}).status_code == 200, host
    for host in ("elsewhere.example", "localhost.elsewhere.example", "127.0.0.1.nip.io:8000", "", "::1"):
        assert http.get("/health", headers={"host": host}).status_code == 400, host
    assert client().get("/health", headers={"host": "elsewhere.example"}).status_code == 200


def test_an_error_of_the_model_is_500_for_its_request_alone(capsys: pytest.CaptureFixture[str]) -> None:
    model = FakeModel()
    model.gate.clear()
    served = service(model)
    with client(served) as http, ThreadPoolExecutor(5) as pool:
        first = pool.submit(http.post, "/translate", json={"text": "first"})
        assert model.entered.wait(SECONDS)
        futures = {text: pool.submit(http.post, "/translate", json={"text": text}) for text in ("a", "BOOM", "b")}
        until(lambda: served.batcher.queued() == 3)
        model.gate.set()
        responses = {text: future.result(SECONDS) for text, future in futures.items()}
        assert first.result(SECONDS).status_code == 200
    assert "ZeroDivisionError" in error_of(responses.pop("BOOM"), 500)
    for text, response in responses.items():
        assert response.json()["answers"][0]["translations"] == [as_json(text)]
    assert "ZeroDivisionError: boom" in capsys.readouterr().err
    assert served.batcher.counts["failed"] == 1


def test_a_client_that_leaves_while_its_text_waits_is_no_error() -> None:
    model = FakeModel()
    model.gate.clear()
    served = service(model)
    problems: list[object] = []
    body = b'{"text": "a"}'
    messages = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def request() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
        response = await server._answer(served, "translate", Request(scope, receive))
        await asyncio.sleep(0)
        gc.collect()  # asyncio reports what nobody has read when it is deleted
        await asyncio.sleep(0)
        return response.status_code

    served.submit("translate", body)  # keeps the model busy
    assert model.entered.wait(SECONDS)
    assert asyncio.run(request()) == 499
    model.gate.set()
    assert problems == []
