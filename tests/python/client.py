"""A client in another language: what it needs to know is in docs/grpc-api.md, in proto/ and in
proto/golden/. The code of that page is the client; here it is used, and what it hides is looked at.

Run by tests/python.rs, which says where everything is, and makes a module of the page:
  client.py GENERATED GOLDEN BODIES HTTP BINARY ADDRESS...
"""

import hashlib
import os
import pty
import subprocess
import sys
import time
import urllib.request
import uuid

import grpc
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

generated, golden, bodies, http, binary, *addresses = sys.argv[1:]
sys.path.insert(0, generated)

from ostraca.v1 import (  # noqa: E402
    inbox_pb2,
    inbox_pb2_grpc,
    outbox_pb2,
    outbox_pb2_grpc,
    paste_pb2,
    paste_pb2_grpc,
)
from page import (  # noqa: E402
    Cluster,
    consume,
    create,
    error_info,
    request_digest,
    slot_of_id,
    slot_of_key,
)

DEADLINE = 20
CONSUMER = "python-test"


def check(is_so, what):
    """Also under `python -O`, which drops assertions."""
    if not is_so:
        raise SystemExit(f"client.py: not so: {what}")


def equal(found, expected, what):
    check(found == expected, f"{what}: {found!r} is {expected!r}")


# What a client computes by itself.


def vectors(name):
    with open(os.path.join(golden, name), encoding="utf-8") as lines:
        return [line.split() for line in lines if line.strip() and line[0] != "#"]


def golden_vectors():
    rows = vectors("keys.txt")
    for text, digest, slot, characters in rows:
        key = uuid.UUID(text)
        equal(hashlib.sha256(key.bytes).hexdigest()[:32], digest, "digest of a key")
        equal(slot_of_key(key), int(slot), "slot of a key")
        equal(slot_of_id(characters), int(slot), "slot of characters")
    ids = 0
    for kind, *fields in vectors("ids.txt"):
        if kind in ("paste", "outbox"):
            equal(slot_of_id(fields[0]), int(fields[1]), f"slot of a {kind} id")
            ids += 1
    digests = vectors("request_digest.txt")
    for body, lifetime, syntax, title, digest in digests:
        found = request_digest(
            bytes.fromhex(body),
            None if lifetime == "-" else int(lifetime),
            None if syntax == "-" else syntax.encode(),
            None if title == "-" else bytes.fromhex(title),
        )
        equal(found.hex(), digest, "digest of a request")
    check(rows and ids and digests, "there are vectors")


# Errors: a code, and one stable reason.


def refused(call, code, reason):
    """The ErrorInfo of a call that must fail."""
    try:
        call()
    except grpc.RpcError as err:
        equal(err.code(), code, "code")
        details = dict(err.trailing_metadata())["grpc-status-details-bin"]
        status = status_pb2.Status.FromString(details)
        equal(status.code, code.value[0], "code in the details")
        found = [
            detail
            for detail in status.details
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)
        ]
        equal(len(found), 1, "number of ErrorInfos")
        info = error_info(err)
        equal((info.domain, info.reason), ("ostraca.dev", reason), "reason")
        return info
    raise SystemExit(f"client.py: not refused with {reason}")


# The client of the page.


def pastes(cluster, slot):
    return paste_pb2_grpc.PasteServiceStub(cluster.channel(cluster.leader(slot)))


def inbox(cluster, slot):
    return inbox_pb2_grpc.InboxServiceStub(cluster.channel(cluster.leader(slot)))


def created(cluster, key, body):
    return create(cluster, bodies, key, body, 600, "python", "From Python")


def key_on(cluster, shard):
    while True:
        key = uuid.uuid4()
        if cluster.owners[slot_of_key(key)] == shard:
            return key


def life_of_a_paste(cluster, shard):
    key = key_on(cluster, shard)
    slot = slot_of_key(key)
    body = f"print('shard {shard}')\n".encode()
    first = created(cluster, key, body)
    check(not first.replayed, "the first is new")

    again = created(cluster, key, body)
    check(again.replayed, "the second is the first")
    for field in ("paste_id", "expires_at_ms", "delete_token"):
        equal(getattr(again, field), getattr(first, field), field)
    other = lambda: created(cluster, key, body + b"#")  # noqa: E731
    info = refused(other, grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_KEY_REUSED")
    check(first.delete_token not in str(info), "a conflict shows nothing")

    equal(slot_of_id(first.paste_id), slot, "slot of the new id")
    stub = pastes(cluster, slot)
    get = paste_pb2.GetPasteRequest(paste_id=first.paste_id)
    read = stub.GetPaste(get, timeout=DEADLINE)
    equal(read.position.shard, shard, "shard that answered")
    check(read.position.epoch > 0, "the answer has an epoch")
    paste = read.paste
    object_key = f"p/{first.paste_id[:2]}/{first.paste_id}"
    equal(paste.object_key, object_key, "object key")
    names = os.listdir(os.path.dirname(os.path.join(bodies, object_key)))
    check(first.paste_id in names, "the body is where it belongs")
    check(not any("#" in name for name in names), "and nothing else")
    equal((paste.title, paste.syntax), ("From Python", "python"), "options")
    equal(paste.body_digest, hashlib.sha256(body).digest(), "digest of the body")
    check(paste.now_ms < paste.expires_at_ms == first.expires_at_ms, "it lives")
    with urllib.request.urlopen(f"{http}/{first.paste_id}/raw", timeout=DEADLINE) as raw:
        equal(raw.read(), body, "body over HTTP")

    # A stale table: the wrong shard does nothing, and says where to go.
    wrong = next(s for s in range(256) if cluster.owners[s] != shard)
    ask = lambda: pastes(cluster, wrong).GetPaste(get, timeout=DEADLINE)  # noqa: E731
    info = refused(ask, grpc.StatusCode.FAILED_PRECONDITION, "WRONG_SHARD")
    leader = cluster.leaders[shard]
    equal(info.metadata["shard"], str(shard), "shard to ask")
    equal(info.metadata["address"], leader[1], "address to ask")
    equal(info.metadata["epoch"], str(leader[0]), "epoch under which it leads")
    equal(info.metadata["routingVersion"], str(cluster.version), "version of the table")
    cluster.leaders[shard] = (leader[0] - 1, cluster.leader(wrong))
    stub_of_call = paste_pb2_grpc.PasteServiceStub
    found = cluster.call(slot, stub_of_call, "GetPaste", get).paste
    equal(found.paste_id, first.paste_id, "paste by a stale route")
    equal(cluster.leaders[shard], leader, "what was learnt")
    cluster.heed(shard, cluster.leader(wrong), leader[0] - 1)
    equal(cluster.leaders[shard], leader, "an earlier leader is not gone back to")

    delete = paste_pb2.DeletePasteRequest(paste_id=first.paste_id, delete_token="0" * 22)
    rejected = lambda: stub.DeletePaste(delete, timeout=DEADLINE)  # noqa: E731
    refused(rejected, grpc.StatusCode.PERMISSION_DENIED, "DELETE_TOKEN_REJECTED")
    delete.delete_token = first.delete_token
    stub.DeletePaste(delete, timeout=DEADLINE)
    gone = lambda: stub.GetPaste(get, timeout=DEADLINE)  # noqa: E731
    refused(gone, grpc.StatusCode.NOT_FOUND, "PASTE_NOT_FOUND")
    return first.paste_id


def consume_by_the_page(cluster, address, expected):
    done = []
    until = time.monotonic() + DEADLINE
    while len(done) < len(expected):
        check(time.monotonic() < until, f"messages of {expected} come in time")
        consume(cluster, address, CONSUMER, done.append)
    equal(sorted(message.paste_id for message in done), sorted(expected), "messages")
    outbox = outbox_pb2_grpc.OutboxServiceStub(cluster.channel(address))
    for message in done:
        stub = inbox(cluster, slot_of_id(message.outbox_id))
        record = inbox_pb2.RecordInboxRequest(consumer=CONSUMER, outbox_id=message.outbox_id)
        check(stub.RecordInbox(record, timeout=DEADLINE).already_recorded, "it is recorded")
        ack = outbox_pb2.AckRequest(consumer=CONSUMER, handles=[message.handle])
        results = outbox.Ack(ack, timeout=DEADLINE).results
        equal(results, [outbox_pb2.SETTLE_RESULT_GONE], "it is acked")


def consume_in_detail(cluster, address, expected):
    """Every message of a shard once: look in the inbox, do the work, record it, ack."""
    outbox = outbox_pb2_grpc.OutboxServiceStub(cluster.channel(address))
    done = []
    until = time.monotonic() + DEADLINE
    while len(done) < len(expected):
        check(time.monotonic() < until, f"messages of {expected} come in time")
        receive = outbox_pb2.ReceiveRequest(consumer=CONSUMER, wait_ms=5000)
        for message in outbox.Receive(receive, timeout=DEADLINE).messages:
            equal(message.cause, outbox_pb2.END_CAUSE_DELETED, "cause")
            slot = slot_of_id(message.outbox_id)
            equal(slot, slot_of_id(message.paste_id), "slot of a message")
            equal(cluster.leader(slot), address, "shard of a message")
            stub = inbox(cluster, slot)
            named = {"consumer": CONSUMER, "outbox_id": message.outbox_id}
            contains = inbox_pb2.ContainsInboxRequest(**named)
            check(not stub.ContainsInbox(contains, timeout=DEADLINE).recorded, "new")
            done.append(message.paste_id)
            for before in (False, True):
                record = inbox_pb2.RecordInboxRequest(**named)
                answer = stub.RecordInbox(record, timeout=DEADLINE)
                equal(answer.already_recorded, before, "recorded before")
            check(stub.ContainsInbox(contains, timeout=DEADLINE).recorded, "recorded")
            ack = outbox_pb2.AckRequest(consumer=CONSUMER, handles=[message.handle])
            for result in (outbox_pb2.SETTLE_RESULT_DONE, outbox_pb2.SETTLE_RESULT_GONE):
                equal(outbox.Ack(ack, timeout=DEADLINE).results, [result], "ack")
    equal(sorted(done), sorted(expected), "messages")


def reflected(cluster, address, version):
    """The services that a shard names. The two versions differ in their name only."""
    call = cluster.channel(address).stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(
            file_containing_symbol="ostraca.v1.PasteService"
        ),
    ]
    listed, file = call(iter(asked), timeout=DEADLINE)
    described = descriptor_pb2.FileDescriptorProto.FromString(
        file.file_descriptor_response.file_descriptor_proto[0]
    )
    equal(described.name, "ostraca/v1/paste.proto", "file that describes the service")
    return {service.name for service in listed.list_services_response.service}


def protoset():
    """What `ostraca protoset` printed, and that it prints it to no terminal."""
    with open(os.path.join(generated, "../ostraca.protoset"), "rb") as printed:
        files = descriptor_pb2.FileDescriptorSet.FromString(printed.read()).file
    terminal, slave = pty.openpty()
    ended = subprocess.run(
        [binary, "protoset"], stdout=slave, stderr=subprocess.PIPE, timeout=DEADLINE
    )
    os.close(slave)
    os.close(terminal)
    equal(ended.returncode, 2, "exit code on a terminal")
    check(b"ostraca protoset > " in ended.stderr, "it says what to do")
    return {f"{file.package}.{service.name}" for file in files for service in file.service}


def main():
    golden_vectors()
    cluster = Cluster(addresses[0])
    check(cluster.version > 0, "the table has a version")
    equal(sorted(cluster.owners), list(range(256)), "routed slots")
    led = {address for _, address in cluster.leaders.values()}
    equal(led, set(addresses), "shards of the routing table")
    check(all(epoch > 0 for epoch, _ in cluster.leaders.values()), "leaders have epochs")
    for address in addresses:
        register = outbox_pb2.RegisterConsumerRequest(consumer=CONSUMER)
        stub = outbox_pb2_grpc.OutboxServiceStub(cluster.channel(address))
        stub.RegisterConsumer(register, timeout=DEADLINE)
    ended = {address: [] for address in addresses}
    for shard in range(len(addresses)):
        for _ in range(3):
            paste_id = life_of_a_paste(cluster, shard)
            ended[cluster.leader(slot_of_id(paste_id))].append(paste_id)
    consume_by_the_page(cluster, addresses[0], ended[addresses[0]])
    for address in addresses[1:]:
        consume_in_detail(cluster, address, ended[address])
    ours = {f"ostraca.v1.{name}Service" for name in ("Paste", "Cluster", "Outbox", "Inbox")}
    ours.add("grpc.health.v1.Health")
    equal(protoset(), ours, "services of the protoset")
    for version in ("v1", "v1alpha"):
        check(ours <= reflected(cluster, addresses[0], version), f"reflection {version}")
    print("done")


main()
