"""A client in another language: what it needs to know is in proto/ and in proto/golden/.

Run by tests/python.rs, which says where everything is:
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
    cluster_pb2,
    cluster_pb2_grpc,
    inbox_pb2,
    inbox_pb2_grpc,
    outbox_pb2,
    outbox_pb2_grpc,
    paste_pb2,
    paste_pb2_grpc,
)

DEADLINE = 20
CONSUMER = "python-test"
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def check(is_so, what):
    """Also under `python -O`, which drops assertions."""
    if not is_so:
        raise SystemExit(f"client.py: not so: {what}")


def equal(found, expected, what):
    check(found == expected, f"{what}: {found!r} is {expected!r}")


# What a client computes by itself.


def slot_of_key(key):
    return hashlib.sha256(key.bytes).digest()[0]


def slot_of_id(text):
    """The slot of a paste id or an outbox id; None for a text that is none."""
    if any(character not in BASE62 for character in text):
        return None
    slot = BASE62.index(text[0]) * 62 + BASE62.index(text[1])
    return slot if slot < 256 else None


def request_digest(body, lifetime=None, syntax=None, title=None):
    digest = hashlib.sha256(b"\x01")
    for tag, value in [
        (1, body),
        (2, None if lifetime is None else lifetime.to_bytes(4, "little")),
        (3, syntax),
        (4, title),
    ]:
        if value is not None:
            digest.update(bytes([tag]) + len(value).to_bytes(4, "little") + value)
    return digest.digest()


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
        info = error_details_pb2.ErrorInfo()
        found[0].Unpack(info)
        equal((info.domain, info.reason), ("ostraca.dev", reason), "reason")
        return info
    raise SystemExit(f"client.py: not refused with {reason}")


class Cluster:
    """Routes by slot, with one connection a shard. Sends nothing twice by itself."""

    def __init__(self, seed):
        self.channels = {}
        routing = cluster_pb2_grpc.ClusterServiceStub(self.channel(seed)).GetRouting(
            cluster_pb2.GetRoutingRequest(), timeout=DEADLINE
        )
        check(routing.version > 0, "the table has a version")
        self.routes = {
            slot: (shard.shard, shard.address)
            for shard in routing.shards
            for slot in shard.slots
        }
        equal(sorted(self.routes), list(range(256)), "routed slots")
        self.shards = {shard.address for shard in routing.shards}

    def channel(self, address):
        if address not in self.channels:
            options = [("grpc.enable_retries", 0)]
            self.channels[address] = grpc.insecure_channel(address, options=options)
        return self.channels[address]

    def pastes(self, slot):
        return paste_pb2_grpc.PasteServiceStub(self.channel(self.routes[slot][1]))

    def outbox(self, address):
        return outbox_pb2_grpc.OutboxServiceStub(self.channel(address))

    def inbox(self, slot):
        return inbox_pb2_grpc.InboxServiceStub(self.channel(self.routes[slot][1]))


def put(object_key, body):
    """A body as crates/bodies writes it to a directory: create-only, and durable on return."""
    path = os.path.join(bodies, object_key)
    unfinished = path + "#1"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        check(os.write(file, body) == len(body), "all of it is written")
        os.fsync(file)
    finally:
        os.close(file)
    os.link(unfinished, path)  # Refuses a name that is taken.
    os.unlink(unfinished)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def create(cluster, key, body, title="From Python"):
    digest = request_digest(body, 600, b"python", title.encode())
    slot = slot_of_key(key)
    stub = cluster.pastes(slot)
    begun = stub.BeginCreate(
        paste_pb2.BeginCreateRequest(idempotency_key=str(key), request_digest=digest),
        timeout=DEADLINE,
    )
    equal(begun.position.shard, cluster.routes[slot][0], "shard that answered")
    if begun.WhichOneof("outcome") == "answer":
        return begun.answer
    ticket = begun.ticket
    equal(slot_of_id(ticket.paste_id), slot, "slot of the new id")
    equal(ticket.object_key, f"p/{ticket.paste_id[:2]}/{ticket.paste_id}", "object key")
    put(ticket.object_key, body)
    committed = stub.CommitCreate(
        paste_pb2.CommitCreateRequest(
            idempotency_key=str(key),
            request_digest=digest,
            ticket=ticket.ticket,
            lifetime_seconds=600,
            syntax="python",
            title=title,
            body_size=len(body),
            body_digest=hashlib.sha256(body).digest(),
        ),
        timeout=DEADLINE,
    )
    check(committed.position.epoch > 0, "the answer has an epoch")
    return committed.answer


def key_on(cluster, shard):
    while True:
        key = uuid.uuid4()
        if cluster.routes[slot_of_key(key)][0] == shard:
            return key


def life_of_a_paste(cluster, shard):
    key = key_on(cluster, shard)
    slot = slot_of_key(key)
    body = f"print('shard {shard}')\n".encode()
    first = create(cluster, key, body)
    check(not first.replayed, "the first is new")

    again = create(cluster, key, body)
    check(again.replayed, "the second is the first")
    for field in ("paste_id", "expires_at_ms", "delete_token"):
        equal(getattr(again, field), getattr(first, field), field)
    other = lambda: create(cluster, key, body + b"#")  # noqa: E731
    info = refused(other, grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_KEY_REUSED")
    check(first.delete_token not in str(info), "a conflict shows nothing")

    stub = cluster.pastes(slot_of_id(first.paste_id))
    get = paste_pb2.GetPasteRequest(paste_id=first.paste_id)
    paste = stub.GetPaste(get, timeout=DEADLINE).paste
    equal((paste.title, paste.syntax), ("From Python", "python"), "options")
    equal(paste.body_digest, hashlib.sha256(body).digest(), "digest of the body")
    check(paste.now_ms < paste.expires_at_ms == first.expires_at_ms, "it lives")
    with urllib.request.urlopen(f"{http}/{first.paste_id}/raw", timeout=DEADLINE) as raw:
        equal(raw.read(), body, "body over HTTP")

    # A stale table: the wrong shard does nothing, and says where to go.
    wrong = next(s for s in range(256) if cluster.routes[s][0] != shard)
    ask = lambda: cluster.pastes(wrong).GetPaste(get, timeout=DEADLINE)  # noqa: E731
    info = refused(ask, grpc.StatusCode.FAILED_PRECONDITION, "WRONG_SHARD")
    equal(info.metadata["shard"], str(shard), "shard to ask")
    equal(info.metadata["address"], cluster.routes[slot][1], "address to ask")

    delete = paste_pb2.DeletePasteRequest(paste_id=first.paste_id, delete_token="0" * 22)
    rejected = lambda: stub.DeletePaste(delete, timeout=DEADLINE)  # noqa: E731
    refused(rejected, grpc.StatusCode.PERMISSION_DENIED, "DELETE_TOKEN_REJECTED")
    delete.delete_token = first.delete_token
    stub.DeletePaste(delete, timeout=DEADLINE)
    gone = lambda: stub.GetPaste(get, timeout=DEADLINE)  # noqa: E731
    refused(gone, grpc.StatusCode.NOT_FOUND, "PASTE_NOT_FOUND")
    return first.paste_id


def consume(cluster, address, expected):
    """Every message of a shard once: look in the inbox, do the work, record it, ack."""
    outbox = cluster.outbox(address)
    done = []
    until = time.monotonic() + DEADLINE
    while len(done) < len(expected):
        check(time.monotonic() < until, f"messages of {expected} come in time")
        receive = outbox_pb2.ReceiveRequest(consumer=CONSUMER, wait_ms=5000)
        for message in outbox.Receive(receive, timeout=DEADLINE).messages:
            equal(message.cause, outbox_pb2.END_CAUSE_DELETED, "cause")
            slot = slot_of_id(message.outbox_id)
            equal(slot, slot_of_id(message.paste_id), "slot of a message")
            equal(cluster.routes[slot][1], address, "shard of a message")
            inbox = cluster.inbox(slot)
            named = {"consumer": CONSUMER, "outbox_id": message.outbox_id}
            contains = inbox_pb2.ContainsInboxRequest(**named)
            check(not inbox.ContainsInbox(contains, timeout=DEADLINE).recorded, "new")
            done.append(message.paste_id)
            for before in (False, True):
                record = inbox_pb2.RecordInboxRequest(**named)
                answer = inbox.RecordInbox(record, timeout=DEADLINE)
                equal(answer.already_recorded, before, "recorded before")
            check(inbox.ContainsInbox(contains, timeout=DEADLINE).recorded, "recorded")
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
    """What `ostraca protoset` prints, and that it prints it to no terminal."""
    printed = subprocess.run(
        [binary, "protoset"], stdout=subprocess.PIPE, check=True, timeout=DEADLINE
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(printed.stdout).file
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
    equal(cluster.shards, set(addresses), "shards of the routing table")
    for address in addresses:
        register = outbox_pb2.RegisterConsumerRequest(consumer=CONSUMER)
        cluster.outbox(address).RegisterConsumer(register, timeout=DEADLINE)
    ended = {address: [] for address in addresses}
    for shard in range(len(addresses)):
        for _ in range(3):
            paste_id = life_of_a_paste(cluster, shard)
            ended[cluster.routes[slot_of_id(paste_id)][1]].append(paste_id)
    for address in addresses:
        consume(cluster, address, ended[address])
    ours = {f"ostraca.v1.{name}Service" for name in ("Paste", "Cluster", "Outbox", "Inbox")}
    ours.add("grpc.health.v1.Health")
    equal(protoset(), ours, "services of the protoset")
    for version in ("v1", "v1alpha"):
        check(ours <= reflected(cluster, addresses[0], version), f"reflection {version}")
    print("done")


main()
