package edgespec;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.json.JSONObject;

/**
 * A verification server on this machine that gives prepared answers. It gives only as many verdicts as
 * a test allows, so that the test can look at the app in the middle of an answer. Its tokens are words
 * with the blank before them, and single bytes.
 */
public final class ScriptedServer extends RawServer {
    private static final int END = 0;
    private static final int FIRST_BYTE = 1;
    private static final int FIRST_WORD = 257;
    /** Milliseconds of a verdict, so that the device has time to draft before plain tokens arrive. */
    private static final int VERDICT_MS = 10;
    private static final long[][] COSTS = {{1, 40000}, {8, 42000}};

    private final String key;
    private final byte[][] pieces;
    private final Map<String, String> answers = new ConcurrentHashMap<String, String>();
    private final Semaphore allowed = new Semaphore(0);
    private final List<String> questions = new CopyOnWriteArrayList<String>();
    private final AtomicInteger connections = new AtomicInteger();
    private volatile int[] script = {};

    /**
     * Starts a server.
     *
     * @param key the key that it expects, "" for none
     * @param says question, answer, question, answer, …
     */
    public ScriptedServer(String key, String... says) throws IOException {
        this(key, anyPort(), says);
    }

    /** Starts a server at the port of one that was closed. */
    public ScriptedServer(String key, int port, String... says) throws IOException {
        this(key, new ServerSocket(port, 50, InetAddress.getByName("127.0.0.1")), says);
    }

    private ScriptedServer(String key, ServerSocket listening, String... says) {
        super(listening);
        this.key = key;
        List<byte[]> all = new ArrayList<byte[]>();
        all.add(new byte[0]);
        for (int i = 0; i < 256; i++) {
            all.add(new byte[] {(byte) i});
        }
        for (int i = 0; i < says.length; i += 2) {
            answers.put(says[i], says[i + 1]);
            for (String word : words(says[i + 1])) {
                all.add(word.getBytes(FrameWriter.UTF_8));
            }
        }
        pieces = all.toArray(new byte[0][]);
    }

    public String address() {
        return url();
    }

    /** Returns host:port, as messages name the server. */
    public String name() {
        return "127.0.0.1:" + port();
    }

    /** Starts a server with the same key at this one's port, after this one was closed. */
    public ScriptedServer again(String... says) throws IOException {
        return new ScriptedServer(key, port(), says);
    }

    /** Allows so many more verdicts. */
    public void allow(int verdicts) {
        allowed.release(verdicts);
    }

    /** Allows only so many verdicts from now on. */
    public void allowOnly(int verdicts) {
        allowed.drainPermits();
        allowed.release(verdicts);
    }

    /** Returns the prompts that were tokenized, each message as "role: content" in a line. */
    public List<String> questions() {
        return questions;
    }

    /** Returns the number of connections, those of the same device included. */
    public int connections() {
        return connections.get();
    }

    // Tokens

    /** Splits a text into words with the blanks before them. */
    private static List<String> words(String text) {
        List<String> words = new ArrayList<String>();
        for (int start = 0; start < text.length();) {
            int end = start + 1;
            while (end < text.length() && text.charAt(end) != ' ' && text.charAt(end) != '\n') {
                end++;
            }
            words.add(text.substring(start, end));
            start = end;
        }
        return words;
    }

    private int[] tokens(String text) {
        IntList ids = new IntList();
        for (String word : words(text)) {
            byte[] bytes = word.getBytes(FrameWriter.UTF_8);
            int known = FIRST_WORD;
            while (known < pieces.length && !Arrays.equals(pieces[known], bytes)) {
                known++;
            }
            if (known < pieces.length) {
                ids.add(known);
                continue;
            }
            for (byte one : bytes) {
                ids.add(FIRST_BYTE + (one & 0xFF));
            }
        }
        return ids.toArray();
    }

    @Override
    void serve(Connection connection) throws Exception {
        boolean let = key.isEmpty() || ("Bearer " + key).equals(connection.headers.get("authorization"));
        if (!let) {
            connection.respond("401 Unauthorized", "", new byte[0]);
        } else if (connection.request.startsWith("POST /tokenize ")) {
            connection.respond("200 OK", "", tokenized(new String(connection.body, FrameWriter.UTF_8)));
        } else if (connection.request.startsWith("GET /v1/vocabulary ")) {
            connection.respond("200 OK", "", vocabulary());
        } else {
            connections.incrementAndGet();
            connection.upgrade();
            new Device(connection).serve();
        }
    }

    private byte[] tokenized(String body) throws Exception {
        StringBuilder prompt = new StringBuilder();
        String content = "";
        for (JSONObject message : Vectors.objects(new JSONObject(body), "messages")) {
            content = message.getString("content");
            prompt.append(message.getString("role")).append(": ").append(content).append('\n');
        }
        questions.add(prompt.toString());
        script = tokens(answers.get(content));
        return ("{\"tokens\":" + Arrays.toString(tokens(prompt.toString())) + "}").getBytes();
    }

    private byte[] vocabulary() {
        FrameWriter out = new FrameWriter();
        out.u8(1);
        out.varint(pieces.length);
        out.raw(Wire.vocabularyHash(pieces));
        out.varint(1);
        out.varint(END);
        for (byte[] piece : pieces) {
            out.varint(piece.length);
            out.raw(piece);
        }
        return out.bytes();
    }

    /** One connection, with the draft to check next and the round up to which it emits tokens. */
    private final class Device {
        private final Connection connection;
        private int nPrompt;
        private int length;
        private int[] draft = {};
        private long round;
        private long until = -1;

        Device(Connection connection) {
            this.connection = connection;
        }

        void serve() throws IOException {
            Thread verdicts = new Thread("test-verdicts") {
                @Override
                public void run() {
                    giveVerdicts();
                }
            };
            verdicts.setDaemon(true);
            verdicts.start();
            for (byte[] data = connection.receive(); data[0] == 2; data = connection.receive()) {
                hear(Wire.decode(Arrays.copyOfRange(data, 1, data.length)));
            }
        }

        private synchronized void hear(Frame frame) throws IOException {
            if (frame instanceof Frame.Open) {
                byte[] token = new byte[16];
                token[0] = 1;
                send(new Frame.Opened(Wire.VERSION, token, 4096, 16, 32, pieces.length,
                        Wire.vocabularyHash(pieces), "scripted", COSTS));
            } else if (frame instanceof Frame.Begin) {
                Frame.Begin begin = (Frame.Begin) frame;
                nPrompt = begin.nPrompt;
                until = -1;
                send(new Frame.Progress(begin.generation, begin.keep + begin.ids.length));
            } else if (frame instanceof Frame.Verify) {
                Frame.Verify verify = (Frame.Verify) frame;
                length = verify.length;
                draft = verify.ids;
                round = verify.round;
                until = round + verify.ahead;
            } else if (frame instanceof Frame.More) {
                until = Math.max(until, ((Frame.More) frame).round);
            } else {
                until = -1;
            }
            notifyAll();
        }

        private void giveVerdicts() {
            try {
                while (true) {
                    allowed.acquire();
                    Thread.sleep(VERDICT_MS);
                    synchronized (this) {
                        while (round > until) {
                            wait();
                        }
                        verdict();
                    }
                }
            } catch (IOException gone) {
                // the connection was closed
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        }

        private void verdict() throws IOException {
            int accepted = 0;
            while (accepted < draft.length && draft[accepted] == wanted(accepted)) {
                accepted++;
            }
            send(new Frame.Answer(round, accepted, wanted(accepted), 40000, new Frame.Logprob[0]));
            length += accepted + 1;
            draft = new int[0];
            round++;
        }

        /** Returns the right token at so many positions after the context. */
        private int wanted(int behind) {
            int position = length - nPrompt + behind;
            return position < script.length ? script[position] : END;
        }

        private void send(Frame frame) throws IOException {
            connection.send(0x82, Wire.encode(frame));
        }
    }
}
