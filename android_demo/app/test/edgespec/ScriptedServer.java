package edgespec;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Semaphore;

/**
 * A verification server on this machine that says what it was told to say, and only as many verdicts as
 * it is allowed, so that a test can look at the app in the middle of an answer. Its tokens are words
 * with the blank before them, and single bytes.
 */
public final class ScriptedServer implements Closeable {
    private static final int END = 0;
    private static final int WORDS = 257;
    /** What a verdict takes, so that the device has time to draft before plain tokens come. */
    private static final int VERDICT_MS = 10;

    private final ServerSocket listening;
    private final String key;
    private final byte[][] pieces;
    private final Map<String, String> answers = new ConcurrentHashMap<String, String>();
    private final Semaphore allowed = new Semaphore(0);
    private final List<Socket> sockets = new CopyOnWriteArrayList<Socket>();
    private final List<String> questions = new CopyOnWriteArrayList<String>();
    private volatile int[] script = {};

    /** @param key what it wants to see, "" for none; says: question, answer, question, answer, … */
    public ScriptedServer(String key, String... says) throws IOException {
        this(key, 0, says);
    }

    /** @param port where to listen, 0 for a free one */
    public ScriptedServer(String key, int port, String... says) throws IOException {
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
        listening = new ServerSocket(port, 50, InetAddress.getByName("127.0.0.1"));
        thread("accept", new Work() {
            @Override
            public void run() throws Exception {
                accept();
            }
        });
    }

    public String address() {
        return "ws://127.0.0.1:" + listening.getLocalPort();
    }

    public int port() {
        return listening.getLocalPort();
    }

    /** So many more verdicts may be given. */
    public void allow(int verdicts) {
        allowed.release(verdicts);
    }

    /** From now on only so many. */
    public void allowOnly(int verdicts) {
        allowed.drainPermits();
        allowed.release(verdicts);
    }

    /** The prompts that were tokenized, each message as "role: content" in a line. */
    public List<String> questions() {
        return questions;
    }

    /** Goes away: no connection stays, no new one is taken. */
    @Override
    public void close() throws IOException {
        listening.close();
        for (Socket socket : sockets) {
            socket.close();
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private void thread(String name, final Work work) {
        Thread thread = new Thread("scripted-server-" + name) {
            @Override
            public void run() {
                try {
                    work.run();
                } catch (IOException gone) {
                    // the device, or this server, has left
                } catch (Exception error) {
                    throw new AssertionError(error);
                }
            }
        };
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() throws IOException {
        while (true) {
            final Socket socket = listening.accept();
            sockets.add(socket);
            thread("connection", new Work() {
                @Override
                public void run() throws Exception {
                    try {
                        serve(socket);
                    } finally {
                        socket.close();
                    }
                }
            });
        }
    }

    // Tokens

    /** Words with the blanks before them. */
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
        IntList ids = new IntList(new int[0]);
        for (String word : words(text)) {
            byte[] bytes = word.getBytes(FrameWriter.UTF_8);
            int known = WORDS;
            while (known < pieces.length && !Arrays.equals(pieces[known], bytes)) {
                known++;
            }
            if (known < pieces.length) {
                ids.addAll(new int[] {known});
            } else {
                for (byte one : bytes) {
                    ids.addAll(new int[] {1 + (one & 255)});
                }
            }
        }
        return ids.toArray();
    }

    // HTTP

    private void serve(Socket socket) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        OutputStream out = socket.getOutputStream();
        String request = line(in);
        String nonce = "";
        String shown = "";
        int length = 0;
        for (String line = line(in); !line.isEmpty(); line = line(in)) {
            String value = line.substring(line.indexOf(':') + 1).trim();
            String name = line.toLowerCase();
            nonce = name.startsWith("sec-websocket-key:") ? value : nonce;
            shown = name.startsWith("authorization:") ? value : shown;
            length = name.startsWith("content-length:") ? Integer.parseInt(value) : length;
        }
        byte[] body = new byte[length];
        in.readFully(body);
        if (!key.isEmpty() && !shown.equals("Bearer " + key)) {
            answer(out, "401 Unauthorized", "{\"error\":{\"message\":\"a wrong key\"}}".getBytes());
        } else if (request.startsWith("POST /tokenize ")) {
            answer(out, "200 OK", tokenized(new String(body, FrameWriter.UTF_8)));
        } else if (request.startsWith("GET /v1/vocabulary ")) {
            answer(out, "200 OK", vocabulary());
        } else if (request.startsWith("GET " + Wire.PATH + " ")) {
            MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
            byte[] digest = sha1.digest((nonce + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").getBytes());
            out.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                    + "Connection: Upgrade\r\nSec-WebSocket-Accept: " + Base64.encode(digest)
                    + "\r\nSec-WebSocket-Protocol: " + Wire.SUBPROTOCOL + "\r\n\r\n").getBytes());
            new Device(out).serve(in);
        } else {
            answer(out, "404 Not Found", new byte[0]);
        }
    }

    private static String line(DataInputStream in) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.readUnsignedByte(); c != '\n'; c = in.readUnsignedByte()) {
            line.append(c == '\r' ? "" : String.valueOf((char) c));
        }
        return line.toString();
    }

    private static void answer(OutputStream out, String status, byte[] body) throws IOException {
        out.write(("HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + body.length
                + "\r\n\r\n").getBytes());
        out.write(body);
        out.flush();
    }

    private byte[] tokenized(String body) throws IOException {
        List<?> messages = (List<?>) ((Map<?, ?>) Json.parse(body)).get("messages");
        StringBuilder prompt = new StringBuilder();
        String content = "";
        for (Object message : messages) {
            content = (String) ((Map<?, ?>) message).get("content");
            prompt.append(((Map<?, ?>) message).get("role")).append(": ").append(content).append('\n');
        }
        questions.add(prompt.toString());
        script = tokens(answers.get(content));
        String ids = Arrays.toString(tokens(prompt.toString()));
        return ("{\"tokens\":" + ids + ",\"count\":1,\"max_model_len\":4096}").getBytes();
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

    /** One connection. What it owes is a draft to judge, or tokens of its own up to a round. */
    private final class Device {
        private final OutputStream out;
        private int nPrompt;
        private int length;
        private int[] draft = {};
        private long round;
        private long until = -1;

        Device(OutputStream out) {
            this.out = out;
        }

        void serve(DataInputStream in) throws IOException {
            thread("verdicts", new Work() {
                @Override
                public void run() throws Exception {
                    judge();
                }
            });
            while (true) {
                hear(Wire.decode(message(in)));
            }
        }

        private synchronized void hear(Frame frame) throws IOException {
            if (frame instanceof Frame.Open) {
                send(new Frame.Opened(1, new byte[] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                        4096, 16, 32, pieces.length, Wire.vocabularyHash(pieces), "scripted",
                        new long[][] {{1, 40000}, {8, 42000}}));
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

        private void judge() throws Exception {
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

        /** The token that belongs so far behind the context. */
        private int wanted(int behind) {
            int position = length - nPrompt + behind;
            return position < script.length ? script[position] : END;
        }

        private void send(Frame frame) throws IOException {
            byte[] data = Wire.encode(frame);
            FrameWriter message = new FrameWriter();
            message.u8(0x82);
            if (data.length < 126) {
                message.u8(data.length);
            } else {
                message.u8(126);
                message.u8(data.length >> 8);
                message.u8(data.length & 255);
            }
            message.raw(data);
            out.write(message.bytes());
            out.flush();
        }

        /** A client's message is in one piece and masked; a control frame ends the connection here. */
        private byte[] message(DataInputStream in) throws IOException {
            int opcode = in.readUnsignedByte();
            int n = in.readUnsignedByte() & 127;
            n = n == 126 ? in.readUnsignedShort() : n;
            byte[] mask = new byte[4];
            byte[] data = new byte[n];
            in.readFully(mask);
            in.readFully(data);
            for (int i = 0; i < n; i++) {
                data[i] ^= mask[i & 3];
            }
            if (opcode != 0x82) {
                throw new IOException("the device says goodbye");
            }
            return data;
        }
    }
}
