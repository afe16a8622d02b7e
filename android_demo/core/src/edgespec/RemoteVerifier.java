package edgespec;

import java.io.Closeable;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Random;

/**
 * The target on another machine, behind "edgespec serve". docs/concepts/protocol.md, and
 * edgespec/verifiers/remote/ for the same in Python.
 *
 * <p>Plain steps are not asked for one by one: the server emits tokens by itself and is told when to
 * go on. A lost connection is made again and the session resumed as long as the server is not away
 * for longer than timeoutMs. Sending never fails: what is lost on the way is noticed, and asked for
 * again, by whoever waits for the answer.
 */
final class RemoteVerifier implements Verifier, Closeable {
    private static final int POLL_MS = 50;
    /** Times that a server may ask for the context of one step. */
    private static final int MANY = 3;
    /** Rounds that the round trip is known from. */
    private static final int RECENT = 32;

    private final Server server;
    private final int timeoutMs;
    private final Sampling sampling;
    private final long seed;
    private final StopFlag stop;
    private final Costs costs = new Costs();
    private final Context context = new Context();
    private final ArrayDeque<Double> roundTrips = new ArrayDeque<Double>();
    private final Random random = new Random();

    private WebSocket connection;
    private Frame arrived;
    private byte[] token = new byte[16];
    private String model;
    private int contextSize;
    private int maxDraft;
    private int maxAhead;

    private int nPrompt;
    private int maxTokens;
    /** Tokens of the context that the server has. */
    private int known;
    /** The first answer after BEGIN tells nothing of what a step takes. */
    private boolean reading;
    private long generation;
    /** The round whose answer is due, and the last one that was given away. */
    private long next;
    private long until = -1;
    private boolean drafting;
    private int[] draft = {};
    private long began;
    private long lostAt;

    /**
     * Connects.
     *
     * @param model the name that must be served, "" for any
     * @param patienceMs how long to wait for this first connection
     */
    RemoteVerifier(Server server, String model, Sampling sampling, long seed, int timeoutMs,
            int patienceMs, StopFlag stop) throws VerifierException {
        this.server = server;
        this.model = model;
        this.sampling = sampling;
        this.seed = seed;
        this.timeoutMs = timeoutMs;
        this.stop = stop;
        connect(patienceMs);
    }

    @Override
    public int contextSize() {
        return contextSize;
    }

    @Override
    public int maxDraft() {
        return maxDraft;
    }

    /** What the target's evaluations take. */
    Costs costs() {
        return costs;
    }

    /** Median of the last rounds' waiting, less what the server says that it took itself. */
    double roundTripS() {
        double[] sorted = new double[roundTrips.size()];
        int n = 0;
        for (double one : roundTrips) {
            sorted[n++] = one;
        }
        Arrays.sort(sorted);
        return n == 0 ? 0 : sorted[n / 2];
    }

    @Override
    public void begin(int[] prompt, int maxTokens) throws VerifierException {
        if (prompt.length > contextSize) {
            throw new VerifierException.ContextFull("the prompt has " + prompt.length
                    + " tokens, the server's context " + contextSize + "; ask something shorter");
        }
        int n = context.tokens().commonPrefix(prompt);
        context.truncate(n);
        context.extend(Arrays.copyOfRange(prompt, n, prompt.length));
        known = Math.min(known, n);
        nPrompt = prompt.length;
        this.maxTokens = maxTokens;
        lostAt = 0;
        sendBegin();
    }

    @Override
    public void submit(int[] draft) {
        this.draft = draft;
        began = System.nanoTime();
        if (draft.length > 0 || next > until) {
            sendVerify();
        } else if (until - next < nAhead() / 2) {
            until = Math.min(next + nAhead(), next - 1 + maxAhead);
            send(new Frame.More(until));
        }
    }

    @Override
    public boolean ready() throws VerifierException {
        while (connection != null && arrived == null && connection.ready()) {
            try {
                Frame frame = decode(connection.receive(0));
                boolean past = frame instanceof Frame.Answer && ((Frame.Answer) frame).round != next;
                arrived = past ? null : frame; // nobody waits any more for one that is past
            } catch (VerifierException.Unavailable error) {
                drop();
            }
        }
        return connection == null || arrived != null;
    }

    @Override
    public Verdict result() throws VerifierException {
        Frame.Answer answer = answer();
        if (answer.nAccepted > draft.length || answer.token >= server.vocabulary().size()) {
            throw fault("accepted " + answer.nAccepted + " of " + draft.length + " tokens and added token "
                    + answer.token + " of " + server.vocabulary().size());
        }
        double serverS = 1e-6 * Math.max(0, answer.serverUs);
        if (!reading) {
            costs.observe(draft.length + 1, serverS);
        }
        if (draft.length > 0) {
            tripTook(1e-9 * (System.nanoTime() - began) - serverS);
        }
        reading = false;
        int[] tokens = Arrays.copyOf(draft, answer.nAccepted + 1);
        tokens[answer.nAccepted] = answer.token;
        known = context.size() + tokens.length;
        return new Verdict(tokens, answer.nAccepted);
    }

    @Override
    public void accept(int[] tokens) {
        context.extend(tokens);
    }

    @Override
    public void rest() {
        if (next <= until) {
            send(new Frame.Cancel());
        }
    }

    /** Says goodbye: the server forgets the session. */
    @Override
    public void close() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    // One exchange

    private Frame.Answer answer() throws VerifierException {
        int needs = 0;
        while (true) {
            try {
                if (connection == null) {
                    reconnect();
                    sendBegin();
                    sendVerify();
                }
                Frame frame = receive(timeoutMs);
                if (frame instanceof Frame.Answer) {
                    if (((Frame.Answer) frame).round == next) {
                        next++;
                        lostAt = 0;
                        return (Frame.Answer) frame;
                    }
                } else if (frame instanceof Frame.Need) {
                    needs++;
                    trust((Frame.Need) frame, needs);
                    sendBegin();
                    sendVerify();
                } else if (frame instanceof Frame.Busy) {
                    await((Frame.Busy) frame);
                    sendVerify();
                } else if (!(frame instanceof Frame.Progress)) {
                    throw fault("sent a frame of type " + frame.type() + " instead of a verdict");
                }
            } catch (VerifierException.Unavailable error) {
                lose(error);
            }
        }
    }

    /** Whether to go on without the connection: throws where there is one, or none for too long. */
    private void lose(VerifierException.Unavailable error) throws VerifierException {
        long now = System.nanoTime();
        if (lostAt == 0) {
            lostAt = now;
        }
        if (connection != null || now - lostAt > timeoutMs * 1000000L) {
            throw error;
        }
        stop.sleep(POLL_MS);
    }

    /** The server has less than was thought, or something else. */
    private void trust(Frame.Need need, int needs) throws VerifierException {
        if (needs > MANY) {
            throw fault("asks for the same context again and again");
        }
        boolean same = context.has(need.have, need.checksum) && need.have < known;
        known = same ? (int) need.have : 0;
    }

    private void await(Frame.Busy busy) throws VerifierException {
        if (System.nanoTime() - began > timeoutMs * 1000000L) {
            throw new VerifierException.Unavailable(server + " has no room: " + busy.message);
        }
        long ms = Math.min(Math.max(busy.retryMs, 1), timeoutMs);
        stop.sleep((long) (ms * (1 + random.nextDouble() / 2)));
    }

    /** Tokens that the server may emit by itself, this one aside. */
    private int nAhead() {
        int emitted = context.size() - nPrompt;
        int most = Math.min(maxTokens - emitted - 1, contextSize - context.size());
        return Math.max(0, Math.min(maxAhead, most));
    }

    private void sendBegin() {
        int keep = Math.min(known, context.size());
        int[] rest = context.tokens().copy(keep, context.size());
        generation++;
        reading = true;
        next = until + 1;
        send(new Frame.Begin(generation, keep, context.checksum(keep), nPrompt, sampling, seed, rest));
        known = context.size();
    }

    /** The first of several drafts lets the server go on behind it, for the next step may be plain. */
    private void sendVerify() {
        int length = context.size();
        int ahead = draft.length > 0 && drafting ? 0 : nAhead();
        drafting = draft.length > 0;
        next = until + 1;
        until = next + ahead;
        send(new Frame.Verify(next, length, context.checksum(length), ahead, draft));
    }

    private void tripTook(double seconds) {
        if (roundTrips.size() == RECENT) {
            roundTrips.removeFirst();
        }
        roundTrips.addLast(Math.max(0, seconds));
    }

    // The connection

    private void connect(int patienceMs) throws VerifierException {
        connection = server.connect(patienceMs, stop);
        boolean opened = false;
        try {
            open(patienceMs);
            opened = true;
        } finally {
            if (!opened) {
                drop();
            }
        }
    }

    private void open(int patienceMs) throws VerifierException {
        ServerVocabulary vocabulary = server.vocabulary();
        long asked = System.nanoTime();
        send(new Frame.Open(Wire.VERSION, token, vocabulary.size(), vocabulary.hash(), model));
        Frame frame = receive(patienceMs);
        if (frame instanceof Frame.Busy) {
            throw new VerifierException.Unavailable(server + ": " + ((Frame.Busy) frame).message);
        }
        if (!(frame instanceof Frame.Opened)) {
            throw fault("sent a frame of type " + frame.type() + " where OPENED was due");
        }
        Frame.Opened opened = (Frame.Opened) frame;
        if (!Arrays.equals(opened.vocabularyHash, vocabulary.hash())) {
            throw new VerifierException.Refused(
                    server + " has another vocabulary than a moment ago; ask again");
        }
        if (opened.contextSize < 1 || opened.maxAhead < 1) {
            throw fault("has a context of " + opened.contextSize + " tokens and emits "
                    + opened.maxAhead + " ahead");
        }
        tripTook(1e-9 * (System.nanoTime() - asked));
        if (!Arrays.equals(opened.token, token)) {
            known = 0; // another session: it has nothing yet
        }
        token = opened.token;
        model = opened.model;
        contextSize = opened.contextSize;
        maxDraft = opened.maxDraft;
        maxAhead = opened.maxAhead;
        costs.measured(opened.costs);
    }

    /** A new connection within the time that a server may be away. */
    private void reconnect() throws VerifierException {
        long end = (lostAt == 0 ? System.nanoTime() : lostAt) + timeoutMs * 1000000L;
        long pauseMs = POLL_MS;
        while (true) {
            try {
                connect((int) Math.max(POLL_MS, (end - System.nanoTime()) / 1000000));
                return;
            } catch (VerifierException.Unavailable error) {
                if (System.nanoTime() + pauseMs * 1000000 > end) {
                    throw error;
                }
            }
            stop.sleep(pauseMs);
            pauseMs = Math.min(2 * pauseMs, 1000);
        }
    }

    private void send(Frame frame) {
        if (connection != null) {
            try {
                connection.send(Wire.encode(frame));
            } catch (VerifierException error) {
                drop();
            }
        }
    }

    /** The next frame that is waited for. Throws what an ERROR says. */
    private Frame receive(int timeoutMs) throws VerifierException {
        long end = System.nanoTime() + timeoutMs * 1000000L;
        while (true) {
            stop.check();
            if (arrived != null) {
                Frame frame = arrived;
                arrived = null;
                return checked(frame);
            }
            if (connection == null) {
                throw new VerifierException.Unavailable("the connection to " + server + " is lost");
            }
            byte[] data;
            try {
                data = connection.receive(POLL_MS);
            } catch (VerifierException.Unavailable error) {
                drop();
                throw new VerifierException.Unavailable(server + ": " + error.getMessage());
            } catch (ProtocolException error) {
                drop();
                throw error;
            }
            if (data != null) {
                arrived = decode(data);
            } else if (System.nanoTime() > end) {
                drop();
                throw new VerifierException.Unavailable(
                        server + " has not answered for " + timeoutMs / 1000.0 + " s");
            }
        }
    }

    private Frame decode(byte[] data) throws ProtocolException {
        try {
            return Wire.decode(data);
        } catch (ProtocolException error) {
            drop();
            throw error;
        }
    }

    private Frame checked(Frame frame) throws VerifierException {
        if (!(frame instanceof Frame.Error)) {
            return frame;
        }
        drop();
        Frame.Error error = (Frame.Error) frame;
        String message = server + ": " + error.message;
        switch (error.code) {
            case Frame.Error.CONTEXT_FULL:
                throw new VerifierException.ContextFull(message);
            case Frame.Error.CLOSING:
            case Frame.Error.INTERNAL:
            case Frame.Error.LIMIT:
                throw new VerifierException.Unavailable(message);
            case Frame.Error.PROTOCOL:
                throw new ProtocolException(message);
            default:
                throw new VerifierException.Refused(message);
        }
    }

    private ProtocolException fault(String what) {
        drop();
        return new ProtocolException(server + " " + what);
    }

    private void drop() {
        if (connection != null) {
            connection.drop();
            connection = null;
        }
        arrived = null;
    }
}
