"""SCRAM against the RFCs' own example, and against brokers that cannot be trusted."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kunicorn.kafka.auth import scram
from kunicorn.kafka.errors import AuthenticationFailed

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s={SALT},i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_the_rfc() -> None:
    talk = scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert next(talk) == f"n,,n=user,r={NONCE}".encode()
    assert talk.send(FIRST.encode()) == f"c=biws,{FIRST.partition(',')[0]},p={PROOF}".encode()
    with pytest.raises(StopIteration):
        talk.send(f"v={SIGNATURE}".encode())


def test_names_with_signs_of_the_protocol_are_escaped() -> None:
    assert next(scram("SCRAM-SHA-512", "a=b,c", "x", NONCE)).startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    "final",
    [b"v=" + b64encode(b"x" * 32), b"", "v=é".encode(), f"v={SIGNATURE}é".encode()],
    ids=["another password's", "none", "not ASCII", "more than one"],
)
def test_a_broker_whose_signature_is_not_the_passwords_is_not_believed(final: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="could not prove that it knows the password"):
        talk_over(FIRST.encode(), final)


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (FIRST.replace("r=r", "r=x"), "nonce does not continue ours"),
        (f"r={NONCE},s={SALT},i=4096", "nonce does not continue ours"),
        (FIRST.replace("i=4096", "i=4095"), "asks for 4095 SCRAM iterations"),
        (FIRST.replace("i=4096", "i=2000000000"), "asks for 2000000000 SCRAM iterations"),
        (FIRST.replace("i=4096", "i=many"), "no salt or no iteration count"),
        (FIRST.replace(SALT, "?"), "no salt or no iteration count"),
        ("m=ext," + FIRST, "extension"),
        ("", "nonce"),
        (FIRST.replace(SALT, "é" + SALT[1:]), "no salt or no iteration count"),
        (FIRST.replace(f"s={SALT},", ""), "no salt or no iteration count"),
        (FIRST.replace(",i=4096", ""), "no salt or no iteration count"),
    ],
)
def test_a_first_message_that_cannot_be_right_ends_it_before_a_proof_is_given(first: str, complaint: str) -> None:
    talk = scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(talk)
    with pytest.raises(AuthenticationFailed, match=complaint):
        talk.send(first.encode())


@pytest.mark.parametrize("byte", [0x00, 0x2C, 0x3D, 0x80, 0xC3, 0xFF], ids=hex)
def test_one_unexpected_byte_in_either_message_is_a_refusal_and_nothing_else(byte: int) -> None:
    first, final = FIRST.encode(), f"v={SIGNATURE}".encode()
    for at in (at for at, was in enumerate(first) if was != byte):
        with pytest.raises(AuthenticationFailed, match=r"kafka|SCRAM credentials"):
            talk_over(with_byte(first, at, byte), final)
    for at in (at for at, was in enumerate(final) if was != byte):
        with pytest.raises(AuthenticationFailed, match="kafka"):
            talk_over(first, with_byte(final, at, byte))


def talk_over(first: bytes, final: bytes) -> None:
    talk = scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(talk)
    talk.send(first)
    talk.send(final)


def with_byte(message: bytes, at: int, byte: int) -> bytes:
    return message[:at] + bytes([byte]) + message[at + 1 :]


def test_the_brokers_own_complaint_is_told_with_the_settings() -> None:
    with pytest.raises(AuthenticationFailed, match=r"invalid-proof; check kafka\.sasl_username"):
        talk_over(FIRST.encode(), b"e=invalid-proof")
