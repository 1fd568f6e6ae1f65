"""A client of a region by redis-py, whose node is killed under it: what it is told is what was done, and once.

Arguments: the ports of the nodes. Says `at PORT` whenever it goes to a node, works until standard input ends, then audits at every node.
"""

import sys
import threading
import time

import redis

# Said where nothing was done, or where nobody knows: the command is repeated, with its name, at another node.
REPEATED = ("CLUSTERDOWN", "TRYAGAIN", "UNKNOWN")
# How often a node that answers so is asked before the client gives up.
ATTEMPTS_MAX = 600

ports = [int(port) for port in sys.argv[1:]]
stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()


def connect(port):
    return redis.Redis(port=port, decode_responses=True, single_connection_client=True, socket_timeout=20)


class Client:
    """A client with a number: every write has a name, and is repeated under it until it has an answer."""

    def __init__(self):
        self.node = 0
        self.connection = None
        self.sequence = 0
        self.number = self.anywhere(lambda connection, _: connection.execute_command("MAINSTAY.ID", "NEW"))

    def anywhere(self, work):
        for attempt in range(ATTEMPTS_MAX):
            try:
                if self.connection is None:
                    self.connection = connect(ports[self.node])
                    # What is said is what is meant here, QUEUED too.
                    self.connection.response_callbacks.clear()
                    print("at", ports[self.node], flush=True)
                return work(self.connection, ["AGAIN"] if attempt > 0 else [])
            except (redis.ConnectionError, redis.TimeoutError):
                pass
            except redis.ResponseError as error:
                # redis-py keeps the first word of what it has a class for to itself.
                if not str(error).startswith(REPEATED) and not isinstance(error, redis.exceptions.ClusterDownError | redis.exceptions.TryAgainError):
                    raise
            # Behind MULTI or WATCH nothing can be gone on with.
            self.connection = None
            self.node = (self.node + 1) % len(ports)
            time.sleep(0.02)
        raise SystemExit("no node gives an answer")

    def named(self, *command):
        self.sequence += 1

        def work(connection, again):
            connection.execute_command("MAINSTAY.ID", self.number, self.sequence, *again)
            return connection.execute_command(*command)

        return self.anywhere(work)

    def transaction(self, watched, commands):
        self.sequence += 1

        def work(connection, again):
            if watched:
                connection.execute_command("WATCH", watched)
            connection.execute_command("MULTI")
            for command in commands:
                connection.execute_command(*command)
            connection.execute_command("MAINSTAY.ID", self.number, self.sequence, *again)
            return connection.execute_command("EXEC")

        return self.anywhere(work)


class Listener(threading.Thread):
    """Hears of every change of a key, once: when its node dies it goes on at another, behind what it has heard."""

    def __init__(self, key):
        super().__init__(daemon=True)
        self.key = key
        self.stands = None
        self.heard = []
        self.problem = None
        self.ready = threading.Event()

    def run(self):
        node = 0
        while self.problem is None:
            node += 1
            connection = redis.Connection(port=ports[node % len(ports)], decode_responses=True, socket_timeout=20)
            try:
                connection.connect()
                # Whatever the version of redis-py begins with: pushes of RESP3 it keeps to itself.
                connection.send_command("HELLO", 2)
                connection.read_response()
                begin = [] if self.stands is None else ["FROM", self.stands]
                connection.send_command("MAINSTAY.SUBSCRIBE", self.key, *begin)
                self.hear(connection)
            except (redis.ConnectionError, redis.TimeoutError):
                pass
            except redis.ResponseError as error:
                # A node that was filled anew, or whose copy is behind, does not have what comes next: another one has.
                if not str(error).startswith(("MISSED", *REPEATED)):
                    self.problem = str(error)
            finally:
                connection.disconnect()
            time.sleep(0.02)

    def hear(self, connection):
        while True:
            kind, *_, data = connection.read_response()
            if kind != "pmessage":
                continue
            word, *rest = data.split(" ")
            if word == "from":
                self.stands = rest[0]
                self.ready.set()
                continue
            view, counter, _, shard = rest
            self.stands = f"{shard}:{view}-{counter}"
            self.heard.append(self.stands)


def expect(told, expected, what):
    if told != expected:
        raise SystemExit(f"{what}: {told!r} instead of {expected!r}")


listener = Listener("counter")
listener.start()
listener.ready.wait(60)
client = Client()
rounds = 0
while rounds < 20 or not stopped.is_set():
    rounds += 1
    expect(client.named("INCR", "counter"), rounds, "INCR")
    # A repetition that was done twice would find the key there.
    expect(client.named("SET", f"new:{rounds}", "v", "NX"), "OK", "SET NX")
    expect(client.transaction(None, [("INCR", "{t}a"), ("INCRBY", "{t}b", 2)]), [rounds, 2 * rounds], "MULTI")
    read = client.anywhere(lambda connection, _: connection.get("{t}w"))
    expect(read, None if rounds == 1 else str(rounds - 1), "GET")
    done = client.transaction("{t}w", [("SET", "{t}w", rounds)])
    if done is None:
        # The first attempt was not done, and this one came to compare behind a write of nobody.
        raise SystemExit("a watched key changed that nobody wrote")
    expect(len(done), 1, "WATCH")

for _ in range(3000):
    if len(listener.heard) >= rounds:
        break
    time.sleep(0.02)
expect(listener.problem, None, "MAINSTAY.SUBSCRIBE")
expect((len(listener.heard), len(set(listener.heard))), (rounds, rounds), "changes of the counter, all and different ones")

for port in ports:
    node = connect(port)
    expect(node.get("counter"), str(rounds), "counter")
    expect(node.mget("{t}a", "{t}b", "{t}w"), [str(rounds), str(2 * rounds), str(rounds)], "transactions")
    expect(node.exists(*[f"new:{number}" for number in range(1, rounds + 1)]), rounds, "SET NX")
    # And as any program uses it.
    listening = redis.Redis(port=port, decode_responses=True).pubsub(ignore_subscribe_messages=True)
    listening.subscribe("__keyspace@0__:soon")
    listening.get_message(timeout=20)
    with node.pipeline(transaction=True) as pipe:
        told = pipe.set("{p}x", 1).incr("{p}x").get("{p}x").execute()
    expect(told, [True, 2, "2"], "a pipeline")
    node.set("soon", "v", px=30)
    heard = []
    while len(heard) < 2:
        message = listening.get_message(timeout=20)
        if message is not None:
            heard.append(message["data"])
    expect(heard, ["set", "expired"], "what a subscriber hears")
    expect(node.get("soon"), None, "a value that has ended")
print("done", rounds, flush=True)
