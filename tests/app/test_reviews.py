"""A study: choices before the answer, who was blind, agreement by hand, and an export to check."""

import hashlib
import json

import pytest

from stepdown.app.reviews import counted, summarize, verdict
from tests.app.small_run import Client, beside


@pytest.fixture
def client(service, tmp_path):
    made = beside(service, tmp_path)
    client = Client(made)
    yield client
    client.close()
    made.stop()


def choose(client, patient, p, by, at=None):
    body = {"patient": patient, "p": p, "by": by, "at": at}
    found = client.post("/v1/choices", body, headers=client.csrf)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize(
    ("acceptable", "advice", "p", "told"),
    [
        ([4, 5], ("acceptable", None), 5, True),
        ([4, 5], ("acceptable", None), 6, False),
        ([], ("watch", 6), 6, True),
        ([], ("act", 7), 6, False),
        ([], ("undecided", None), 6, None),
        ([], ("none", None), 6, None),
    ],
)
def test_a_choice_agrees_with_what_the_model_says_if_it_says_anything(acceptable, advice, p, told):
    answer = {"acceptable": acceptable, "advice": dict(zip(("kind", "p"), advice, strict=True))}
    assert verdict(answer, p) is told


def test_a_choice_is_kept_beside_the_answer_that_was_hidden(client, service):
    patient = next(iter(service.stays))
    kept = choose(client, patient, 6, "Dr A")
    body = client.get(f"/v1/audit/{kept['audit_id']}").json()["body"]
    answer = client.get(f"/v1/audit/{kept['answer_id']}/replay").json()
    assert kept["answer_id"] < kept["audit_id"]
    assert (body["p"], body["by"], body["blind"]) == (6, "Dr A", True)
    assert body["agrees"] == verdict(answer, 6)
    assert answer["source"]["patient"] == patient


def test_who_saw_the_answer_before_is_not_blind_and_others_are(client, service):
    one, two = list(service.stays)[:2]
    choose(client, one, 6, "ab")
    choose(client, one, 6, "cd")  # ab saw it after choosing, cd did not
    choose(client, one, 5, "ab")  # changed his mind after seeing it
    client.post(f"/v1/patients/{two}/whatif", {})
    choose(client, two, 6, "ab")
    choices = counted(client.service.audit.every("choice"))
    assert [(x["by"], x["blind"], x["first"]) for x in choices] == [
        ("ab", True, True), ("cd", True, True), ("ab", False, False), ("ab", False, True),
    ]  # fmt: skip
    assert not any(x["counts"] for x in choices[2:])


def test_agreement_is_counted_by_reviewer_in_turn_and_between_them():
    def choice(by, patient, p, agrees, counts=True):
        return {"by": by, "patient": patient, "minute": 60.0, "p": p, "blind": True,
                "agrees": agrees, "first": True, "counts": counts}  # fmt: skip

    mine = [choice("ab", f"p{i}", 6, i < 9) for i in range(12)]
    theirs = [choice("cd", f"p{i}", 6 + i, True) for i in range(3)]
    nothing = [choice("cd", "p9", 2, None, counts=False)]
    told = summarize([*mine, *theirs, *nothing])
    assert (told["choices"], told["counted"]) == (16, 15)
    ab, cd = told["reviewers"]
    assert (ab["agreed"], ab["counted"]) == (9, 12)
    assert ab["over_time"] == [{"counted": 10, "agreed": 9}, {"counted": 2, "agreed": 0}]
    assert ab["interval"] == pytest.approx([0.388, 0.935], abs=0.002)  # Wilson, 99 %, by hand
    assert (cd["choices"], cd["counted"], cd["agreed"]) == (4, 3, 3)
    assert told["pairs"] == [{"by": ["ab", "cd"], "moments": 4, "same": 1, "within_one": 2}]


def test_the_export_holds_every_choice_with_its_digest(client, service):
    patient = next(iter(service.stays))
    for p in (5, 6, 7):
        choose(client, patient, p, "ab", at="300")
    *lines, last = client.get("/v1/reviews/export").text.splitlines(keepends=True)
    assert json.loads(last) == {
        "choices": 3, "sha256": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }  # fmt: skip
    for line in map(json.loads, lines):
        entry = client.get(f"/v1/audit/{line['audit_id']}").json()
        assert (line["digest"], line["p"]) == (entry["digest"], entry["body"]["p"])
    assert client.get("/v1/reviews").json()["choices"] == 3
