package edgespec;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.json.JSONObject;

/**
 * A verification server for the toy target, by docs/concepts/protocol.md. It checks what a device sends,
 * gives only the verdicts that a test allows, and cuts the connection, refuses or forgets if a test wants it.
 */
public final class FakeServer extends RawServer {
    static final int OPEN = 1;
    static final int BEGIN = 2;
    static final int VERIFY = 3;
    static final int MORE = 4;
    static final int CANCEL = 5;

    /** What a frame of a device says; fields that its type does not have are 0. */
    record Heard(int type, long round, int ahead, int keep, int[] ids) {}

    public String key = "";
    /** Answers by their questions; others are those of the toy target. */
    public final Map<String, String> answers = new ConcurrentHashMap<>();
    public volatile long delayMs = 0;
    /** The prompts that were tokenized, each message as "role: content" in a line. */
    public final List<String> prompts = new CopyOnWriteArrayList<>();
    int contextSize = 4096;
    long[][] costs = {{1, 20000}, {8, 22000}, {32, 30000}};
    String model = "toy";
    /** Number of frames, sent and received, after which the connection is cut once. */
    final AtomicInteger cutAfter = new AtomicInteger(Integer.MAX_VALUE);
    /** True if a cut is a restart of the server. */
    boolean forgetsWhenCut;
    /** Frames that answer the first VERIFYs instead of verdicts, one each. */
    final List<byte[]> firstSay = new CopyOnWriteArrayList<>();
    /** The frame that answers OPEN instead of OPENED, or null. */
    volatile byte[] refusal;
    volatile boolean silent;
    /** True if requests to /tokenize get no answer. */
    volatile boolean stalls;
    /** Sentences on everything that devices sent against the protocol. */
    final List<String> faults = new CopyOnWriteArrayList<>();
    final List<Heard> heard = new CopyOnWriteArrayList<>();
    final List<String> requests = new CopyOnWriteArrayList<>();
    private final Semaphore allowed = new Semaphore(1000000);
    private final Map<String, Device> devices = new ConcurrentHashMap<>();
    private int nTokens;

    public FakeServer() throws IOException {
        super(anyPort());
    }

    private FakeServer(ServerSocket listening) {
        super(listening);
    }

    /** Starts a server at the port of this one, which is closed. */
    public FakeServer again() throws IOException {
        ServerSocket socket = new ServerSocket();
        socket.setReuseAddress(true);
        socket.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), listening.getLocalPort()));
        return new FakeServer(socket);
    }

    /** Allows only so many verdicts from now on. */
    public void allowOnly(int verdicts) {
        allowed.drainPermits();
        allowed.release(verdicts);
    }

    /** Allows all verdicts from now on. */
    public void allowAll() {
        allowOnly(1000000);
    }

    /** The state of one session. */
    private static final class Device {
        final byte[] token = new byte[16];
        final IntList context = new IntList();
        int nPrompt = -1;
        int[] draft = {};
        /** The last round that was answered, its answer, and the last round that may be answered. */
        long round = -1;
        byte[] answer;
        long until = -1;

        boolean has(int length, int checksum) {
            return length <= context.size() && context.checksum(length) == checksum;
        }
    }

    /** Deletes all sessions, as a restart does. */
    void forget() {
        devices.clear();
    }

    public int count(int type) {
        return (int) heard.stream().filter(frame -> frame.type == type).count();
    }

    /** Returns the number of sessions that devices have opened or resumed. */
    public int connections() { return count(OPEN); }

    @Override
    void serve(Connection connection) throws Exception {
        requests.add(connection.request + " " + connection.headers.get("if-none-match"));
        if (!key.isEmpty() && !("Bearer " + key).equals(connection.headers.get("authorization"))) {
            connection.respond("401 Unauthorized", "", "{\"error\":{\"message\":\"a key is needed\"}}".getBytes());
        } else if (connection.request.startsWith("GET /v1/vocabulary")) {
            String tag = "\"" + Server.hex(Toy.hash()) + "\"";
            boolean same = tag.equals(connection.headers.get("if-none-match"));
            connection.respond(same ? "304 Not Modified" : "200 OK", "ETag: " + tag + "\r\n",
                    same ? new byte[0] : Toy.vocabulary());
        } else if (connection.request.startsWith("POST /tokenize") && stalls) {
            connection.in.readUnsignedByte(); // no byte comes: it waits until the device gives up
        } else if (connection.request.startsWith("POST /tokenize")) {
            tokenize(connection);
        } else {
            connection.upgrade();
            verify(connection);
        }
    }

    private void tokenize(Connection connection) throws Exception {
        JSONObject asked = new JSONObject(new String(connection.body, StandardCharsets.UTF_8));
        List<Message> messages = new ArrayList<>();
        StringBuilder prompt = new StringBuilder();
        for (JSONObject message : Vectors.objects(asked, "messages")) {
            messages.add(new Message(message.getString("role"), message.getString("content")));
            prompt.append(message.getString("role")).append(": ").append(message.getString("content")).append('\n');
        }
        prompts.add(prompt.toString());
        String tokens = Arrays.toString(Toy.encode(messages));
        connection.respond("200 OK", "", ("{\"count\":1,\"tokens\":" + tokens + "}").getBytes());
    }

    private void verify(Connection connection) throws Exception {
        FrameReader open = take(connection);
        Device device = open == null || open.u8() != OPEN ? null : admit(connection, open);
        while (device != null) {
            if (device.round < device.until && connection.in.available() == 0) {
                Thread.sleep(delayMs);
                if (connection.in.available() == 0 && allowed.tryAcquire(5, TimeUnit.MILLISECONDS)) {
                    answer(connection, device);
                }
                continue;
            }
            FrameReader frame = take(connection);
            if (frame == null) {
                return;
            }
            hear(connection, device, frame);
        }
    }

    private Device admit(Connection connection, FrameReader in) throws IOException {
        heard.add(new Heard(OPEN, 0, 0, 0, null));
        if (refusal != null) {
            send(connection, refusal);
            return null;
        }
        if (in.u8() != Wire.VERSION) {
            faults.add("another version");
        }
        String token = Server.hex(in.raw(16));
        if (in.number() != Toy.SIZE || !Arrays.equals(in.raw(16), Toy.hash())) {
            faults.add("another vocabulary");
        }
        String wanted = in.text();
        if (!wanted.isEmpty() && !wanted.equals(model)) {
            send(connection, error(3, "this server has " + model));
            return null;
        }
        Device device = devices.get(token);
        if (device == null) {
            device = new Device();
            device.token[0] = (byte) ++nTokens;
            devices.put(Server.hex(device.token), device);
        }
        device.until = device.round; // after a lost connection it emits nothing unasked
        send(connection, opened(device.token));
        return device;
    }

    private void hear(Connection connection, Device device, FrameReader in) throws IOException {
        int type = in.u8();
        if (type == BEGIN) {
            begin(connection, device, in);
        } else if (type == VERIFY) {
            verify(connection, device, in);
        } else if (type == MORE) {
            long round = in.varint();
            heard.add(new Heard(MORE, round, 0, 0, null));
            device.until = Math.max(device.until, Math.min(round, device.round + 32));
        } else if (type == CANCEL) {
            heard.add(new Heard(CANCEL, 0, 0, 0, null));
            device.until = device.round;
        } else {
            faults.add("a device sent a frame of type " + type);
        }
    }

    private static int[] ids(FrameReader in) throws IOException {
        IntList ids = new IntList();
        while (in.left() > 0) {
            ids.add(in.number());
        }
        return ids.toArray();
    }

    private void begin(Connection connection, Device device, FrameReader in) throws IOException {
        long generation = in.varint();
        int keep = in.number();
        int checksum = in.u32();
        int nPrompt = in.number();
        in.raw(6 * 8 + 3 + 8 + 1); // sampling, seed, no options
        int[] ids = ids(in);
        heard.add(new Heard(BEGIN, 0, 0, keep, ids));
        device.until = device.round;
        if (!device.has(keep, checksum)) {
            need(connection, device);
            return;
        }
        device.context.truncate(keep);
        device.context.addAll(ids);
        device.nPrompt = nPrompt;
        device.answer = null;
        if (nPrompt < 1 || nPrompt > device.context.size()) {
            faults.add("a prompt of " + nPrompt + " in " + device.context.size());
        }
        send(connection, frame(0x82, generation, device.context.size()).bytes());
    }

    private void verify(Connection connection, Device device, FrameReader in) throws IOException {
        long round = in.varint();
        int length = in.number();
        int checksum = in.u32();
        int ahead = in.number();
        in.raw(1); // no parents
        int[] draft = ids(in);
        heard.add(new Heard(VERIFY, round, ahead, 0, draft));
        if (silent) {
            return;
        }
        if (round == device.round && device.answer != null) {
            send(connection, device.answer);
            return;
        }
        if (round <= Math.max(device.round, device.until)) {
            faults.add("round " + round + " after " + device.round + " and " + device.until);
        }
        if (length + draft.length > contextSize || draft.length > 31 || ahead > 32) {
            faults.add("a draft of " + draft.length + " and " + ahead + " at " + length);
        }
        if (!firstSay.isEmpty()) {
            byte[] said = firstSay.remove(0);
            if (said[0] == (byte) 0x84) {
                device.context.truncate(said[1]);
                need(connection, device);
            } else {
                send(connection, said);
            }
        } else if (device.nPrompt < 0 || !device.has(length, checksum)) {
            need(connection, device);
        } else {
            device.context.truncate(length);
            device.draft = draft;
            device.round = round - 1;
            device.answer = null;
            device.until = round + ahead;
        }
    }

    private void need(Connection connection, Device device) throws IOException {
        int have = device.context.size();
        send(connection, need(have, device.context.checksum(have)));
    }

    private int target(IntList context) {
        return Toy.next(context, context.size(), asked -> answers.getOrDefault(asked, Toy.answer(asked)));
    }

    private void answer(Connection connection, Device device) throws IOException {
        int n = 0;
        int token = target(device.context);
        while (n < device.draft.length && device.draft[n] == token) {
            device.context.add(token);
            n++;
            token = target(device.context);
        }
        device.context.add(token);
        device.draft = new int[0];
        device.round++;
        device.answer = answer(device.round, n, token);
        send(connection, device.answer);
    }

    // Frames

    byte[] opened(byte[] token) {
        FrameWriter out = frame(0x81, Wire.VERSION);
        out.raw(token);
        out.ids(new int[] {contextSize, 31, 32, Toy.SIZE});
        out.raw(Toy.hash());
        out.text(model);
        out.varint(costs.length);
        for (long[] pair : costs) {
            out.varint(pair[0]);
            out.varint(pair[1]);
        }
        out.varint(1);
        return out.bytes();
    }

    /** Begins a frame with numbers. */
    private static FrameWriter frame(int type, long... numbers) {
        FrameWriter out = new FrameWriter();
        out.u8(type);
        for (long number : numbers) {
            out.varint(number);
        }
        return out;
    }

    static byte[] answer(long round, int nAccepted, int token) {
        return frame(0x83, round, nAccepted, token, 20000).bytes();
    }

    static byte[] need(int have, int checksum) {
        FrameWriter out = frame(0x84, have);
        out.u32(checksum);
        return out.bytes();
    }

    static byte[] busy(int ms, String message) {
        FrameWriter out = frame(0x85, ms);
        out.text(message);
        return out.bytes();
    }

    static byte[] error(int code, String message) {
        FrameWriter out = frame(0x86, code); // codes have one byte
        out.text(message);
        return out.bytes();
    }

    private void send(Connection connection, byte[] frame) throws IOException {
        connection.send(0x82, frame);
        tick(connection);
    }

    /** Returns the next frame, null if the device closes the connection. */
    private FrameReader take(Connection connection) throws IOException {
        byte[] data = connection.receive();
        if (data[0] != 2) {
            return null;
        }
        tick(connection);
        return new FrameReader(Arrays.copyOfRange(data, 1, data.length));
    }

    private void tick(Connection connection) throws IOException {
        if (cutAfter.decrementAndGet() == 0) {
            if (forgetsWhenCut) {
                forget();
            }
            connection.socket.close();
            throw new IOException("cut, as the test wanted");
        }
    }
}
