package edgespec;

import java.io.IOException;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.json.JSONObject;

/**
 * A verification server for the toy target, by docs/concepts/protocol.md. It checks what a device
 * sends, and cuts the connection, refuses or forgets if a test wants it.
 */
final class FakeServer extends RawServer {
    String key = "";
    int contextSize = 4096;
    long[][] costs = {{1, 20000}, {8, 22000}, {32, 30000}};
    String model = "toy";
    /** Number of frames, sent and received, after which the connection is cut once. */
    final AtomicInteger cutAfter = new AtomicInteger(Integer.MAX_VALUE);
    /** Frames that answer the first VERIFYs instead of verdicts, one each. */
    final List<Frame> firstSay = Collections.synchronizedList(new ArrayList<Frame>());
    /** The frame that answers OPEN instead of OPENED, or null. */
    volatile Frame refusal;
    /** The HTTP status that WebSockets get instead of a handshake, "" for a handshake. */
    volatile String status = "";
    volatile long delayMs = 0;
    volatile boolean silent;
    /** True if requests to /tokenize get no answer. */
    volatile boolean stalls;
    /** Sentences on everything that devices sent against the protocol. */
    final List<String> faults = Collections.synchronizedList(new ArrayList<String>());
    final List<Frame> heard = Collections.synchronizedList(new ArrayList<Frame>());
    final List<String> requests = Collections.synchronizedList(new ArrayList<String>());
    final AtomicInteger goodbyes = new AtomicInteger();
    private final Map<String, Device> devices = Collections.synchronizedMap(new HashMap<String, Device>());
    private int nTokens;

    FakeServer() throws IOException {
        super(anyPort());
    }

    FakeServer(ServerSocket listening) {
        super(listening);
    }

    /** The state of one session. */
    private static final class Device {
        final byte[] token = new byte[16];
        final Context context = new Context();
        int nPrompt = -1;
        long round = -1;
        long until = -1;
        byte[] answer;
    }

    /** Deletes all sessions, as a restart does. */
    void forget() {
        devices.clear();
    }

    int count(Class<?> kind) {
        int n = 0;
        for (Frame frame : new ArrayList<Frame>(heard)) {
            n += kind.isInstance(frame) ? 1 : 0;
        }
        return n;
    }

    @Override
    void serve(Connection connection) throws Exception {
        requests.add(connection.request + " " + connection.headers.get("if-none-match"));
        boolean let = key.isEmpty() || ("Bearer " + key).equals(connection.headers.get("authorization"));
        if (!let) {
            connection.respond("401 Unauthorized", "", "{\"error\":{\"message\":\"a key is needed\"}}".getBytes("UTF-8"));
        } else if (connection.request.startsWith("GET /v1/vocabulary")) {
            String tag = "\"" + Server.hex(Toy.hash()) + "\"";
            boolean same = tag.equals(connection.headers.get("if-none-match"));
            connection.respond(same ? "304 Not Modified" : "200 OK", "ETag: " + tag + "\r\n",
                    same ? new byte[0] : Toy.vocabulary());
        } else if (connection.request.startsWith("POST /tokenize") && stalls) {
            connection.in.readUnsignedByte(); // no byte comes: it waits until the device gives up
        } else if (connection.request.startsWith("POST /tokenize")) {
            tokenize(connection);
        } else if (!status.isEmpty()) {
            connection.respond(status, "", new byte[0]);
        } else {
            connection.upgrade();
            verify(connection);
        }
    }

    private static void tokenize(Connection connection) throws Exception {
        JSONObject asked = new JSONObject(new String(connection.body, "UTF-8"));
        List<Message> messages = new ArrayList<Message>();
        for (JSONObject message : Vectors.objects(asked, "messages")) {
            messages.add(new Message(message.getString("role"), message.getString("content")));
        }
        String tokens = Arrays.toString(Toy.encode(messages));
        connection.respond("200 OK", "", ("{\"count\":1,\"tokens\":" + tokens + "}").getBytes("UTF-8"));
    }

    private void verify(Connection connection) throws Exception {
        Frame.Open open = (Frame.Open) take(connection);
        Device device = open == null ? null : admit(connection, open);
        while (device != null) {
            boolean goesOn = device.answer != null && device.round < device.until;
            if (goesOn && connection.in.available() == 0) {
                Thread.sleep(delayMs);
                if (connection.in.available() == 0) {
                    answer(connection, device, device.round + 1, new int[0]);
                    continue;
                }
            }
            Frame frame = take(connection);
            if (frame == null) {
                return;
            }
            heard(connection, device, frame);
        }
    }

    private Device admit(Connection connection, Frame.Open open) throws IOException {
        if (refusal != null) {
            send(connection, refusal);
            return null;
        }
        if (open.vocabularySize != Toy.SIZE || !Arrays.equals(open.vocabularyHash, Toy.hash())) {
            faults.add("a vocabulary of " + open.vocabularySize);
        }
        if (!open.model.isEmpty() && !open.model.equals(model)) {
            send(connection, new Frame.Error(Frame.Error.MODEL, "this server has " + model));
            return null;
        }
        Device device = devices.get(Server.hex(open.token));
        if (device == null) {
            device = new Device();
            device.token[0] = (byte) ++nTokens;
            devices.put(Server.hex(device.token), device);
        }
        device.until = device.round; // after a lost connection it emits nothing unasked
        send(connection, new Frame.Opened(Wire.VERSION, device.token, contextSize, 31, 32, Toy.SIZE,
                Toy.hash(), model, costs));
        return device;
    }

    private void heard(Connection connection, Device device, Frame frame) throws IOException {
        if (frame instanceof Frame.Begin) {
            begin(connection, device, (Frame.Begin) frame);
        } else if (frame instanceof Frame.Verify) {
            verify(connection, device, (Frame.Verify) frame);
        } else if (frame instanceof Frame.More) {
            long round = ((Frame.More) frame).round;
            if (round > device.until) {
                device.until = Math.min(round, device.round + 32);
            }
        } else if (frame instanceof Frame.Cancel) {
            device.until = device.round;
        } else {
            faults.add("a device sent a frame of type " + frame.type());
        }
    }

    private void begin(Connection connection, Device device, Frame.Begin begin) throws IOException {
        device.until = device.round;
        if (!device.context.has(begin.keep, begin.checksum)) {
            need(connection, device);
            return;
        }
        device.context.truncate(begin.keep);
        device.context.extend(begin.ids);
        device.nPrompt = begin.nPrompt;
        device.answer = null;
        if (begin.nPrompt < 1 || begin.nPrompt > device.context.size()) {
            faults.add("a prompt of " + begin.nPrompt + " in " + device.context.size());
        }
        send(connection, new Frame.Progress(begin.generation, device.context.size()));
    }

    private void verify(Connection connection, Device device, Frame.Verify verify) throws IOException {
        if (silent) {
            return;
        }
        if (verify.round == device.round && device.answer != null) {
            sendRaw(connection, device.answer);
            return;
        }
        if (verify.round <= Math.max(device.round, device.until)) {
            faults.add("round " + verify.round + " after " + device.round + " and " + device.until);
        }
        if (verify.length + verify.ids.length > contextSize || verify.ids.length > 31 || verify.ahead > 32) {
            faults.add("a draft of " + verify.ids.length + " and " + verify.ahead + " at " + verify.length);
        }
        if (!firstSay.isEmpty()) {
            Frame said = firstSay.remove(0);
            if (said instanceof Frame.Need) {
                device.context.truncate((int) ((Frame.Need) said).have);
                need(connection, device);
            } else {
                send(connection, said);
            }
            return;
        }
        if (device.nPrompt < 0 || !device.context.has(verify.length, verify.checksum)) {
            need(connection, device);
            return;
        }
        device.context.truncate(verify.length);
        device.until = verify.round + verify.ahead;
        answer(connection, device, verify.round, verify.ids);
    }

    private void need(Connection connection, Device device) throws IOException {
        int have = device.context.size();
        send(connection, new Frame.Need(have, device.context.checksum(have)));
    }

    private void answer(Connection connection, Device device, long round, int[] draft) throws IOException {
        Context context = device.context;
        int n = 0;
        int token = Toy.next(context.tokens(), context.size());
        while (n < draft.length && draft[n] == token) {
            context.extend(new int[] {token});
            n++;
            token = Toy.next(context.tokens(), context.size());
        }
        context.extend(new int[] {token});
        device.round = round;
        device.answer = Wire.encode(new Frame.Answer(round, n, token, 20000, new Frame.Logprob[0]));
        sendRaw(connection, device.answer);
    }

    private void send(Connection connection, Frame frame) throws IOException {
        sendRaw(connection, Wire.encode(frame));
    }

    private void sendRaw(Connection connection, byte[] data) throws IOException {
        connection.send(0x82, data);
        tick(connection);
    }

    /** Returns the next frame, null if the device closes the connection. */
    private Frame take(Connection connection) throws IOException {
        byte[] data = connection.receive();
        if (data[0] != 2) {
            goodbyes.addAndGet(data[0] == 8 && data[2] == (byte) 0xE8 ? 1 : 0);
            return null;
        }
        tick(connection);
        Frame frame = Wire.decode(Arrays.copyOfRange(data, 1, data.length));
        heard.add(frame);
        return frame;
    }

    private void tick(Connection connection) throws IOException {
        if (cutAfter.decrementAndGet() == 0) {
            connection.socket.close();
            throw new IOException("cut, as the test wanted");
        }
    }
}
