package edgespec;

import java.io.Closeable;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Random;

/**
 * Reaches a target on another machine, served by "edgespec serve", by the protocol of
 * docs/concepts/protocol.md. edgespec/verifiers/remote/ is the same in Python.
 *
 * <p>Plain steps are not asked for one by one: the server emits tokens by itself and is told when to
 * go on. If the connection is lost, this class connects again and resumes the session, unless the
 * server is away for longer than timeoutMs. Sending never fails: the method that waits for the answer
 * notices what was lost, and asks for it again.
 */
final class RemoteVerifier implements ModelDrafter.Verdict, Closeable {
    private static final int POLL_MS = 50;
    /** Number of times that a server may ask for the context in one step. */
    private static final int MAX_NEEDS = 3;
    /** Number of last rounds from which the round trip is computed. */
    private static final int N_ROUND_TRIPS = 32;

    private final Server server;
    private final int timeoutMs;
    private final double temperature;
    private final long seed;
    private final StopFlag stop;
    private final Costs costs = new Costs();
    private final IntList context = new IntList();
    private final ArrayDeque<Double> roundTrips = new ArrayDeque<Double>();
    private final Random random = new Random();

    private WebSocket connection;
    private Frame arrived;
    private byte[] token = new byte[16];
    /** Name of the model that the session began with, "" before that. */
    private String model = "";
    private int contextSize;
    private int maxDraft;
    private int maxAhead;

    private int nPrompt;
    private int maxTokens;
    /** Number of tokens at the beginning of the context that the server has. */
    private int nKnown;
    /** True until the first answer after BEGIN, whose time says nothing about the costs of a step. */
    private boolean prefilling;
    private long generation;
    /** The round whose answer is due, and the last one that the server may answer unasked. */
    private long due;
    private long lastRound = -1;
    /** True if the last VERIFY had a draft. */
    private boolean draftedLast;
    private int[] draft = {};
    private long submittedAt;
    private long lostAt;

    /**
     * Connects to the server.
     *
     * @param timeoutMs milliseconds that the server may be away later
     * @param connectTimeoutMs milliseconds to wait for this first connection
     */
    RemoteVerifier(Server server, double temperature, long seed, int timeoutMs, int connectTimeoutMs,
            StopFlag stop) throws VerifierException {
        this.server = server;
        this.temperature = temperature;
        this.seed = seed;
        this.timeoutMs = timeoutMs;
        this.stop = stop;
        connect(connectTimeoutMs);
    }

    /** Number of tokens that the target's context holds. */
    int contextSize() { return contextSize; }

    /** Most tokens of a draft; 0 where drafting does not pay. */
    int maxDraft() { return maxDraft; }

    /** The costs of the target's evaluations. */
    Costs costs() { return costs; }

    /** Returns the median waiting time of the last rounds without the server's own work, in seconds. */
    double roundTripS() {
        double[] sorted = new double[roundTrips.size()];
        int n = 0;
        for (double one : roundTrips) {
            sorted[n++] = one;
        }
        Arrays.sort(sorted);
        return n == 0 ? 0 : sorted[n / 2];
    }

    /**
     * Begins a request.
     *
     * @param prompt at most contextSize tokens
     * @param maxTokens most tokens of the answer
     */
    void begin(int[] prompt, int maxTokens) {
        int n = context.commonPrefix(prompt);
        context.truncate(n);
        context.addAll(Arrays.copyOfRange(prompt, n, prompt.length));
        nKnown = Math.min(nKnown, n);
        nPrompt = prompt.length;
        this.maxTokens = maxTokens;
        lostAt = 0;
        sendBegin();
    }

    /** Sends a draft; an empty one asks for a plain step. */
    void submit(int[] draft) {
        this.draft = draft;
        submittedAt = System.nanoTime();
        if (draft.length > 0 || due > lastRound) {
            sendVerify();
        } else if (lastRound - due < nAhead() / 2) {
            lastRound = Math.min(due + nAhead(), due - 1 + maxAhead);
            send(Wire.more(lastRound));
        }
    }

    /** Returns true if result would not wait. */
    @Override
    public boolean ready() throws VerifierException {
        while (connection != null && arrived == null && connection.ready()) {
            try {
                Frame frame = Wire.decode(connection.receive(0));
                boolean past = frame instanceof Frame.Answer && ((Frame.Answer) frame).round != due;
                arrived = past ? null : frame; // drop answers of earlier rounds
            } catch (VerifierException.Unavailable error) {
                drop();
            }
        }
        return connection == null || arrived != null;
    }

    /** Waits for the verdict: the accepted tokens of the draft, and one of the target's own. */
    int[] result() throws VerifierException {
        Frame.Answer answer = answer();
        if (answer.nAccepted > draft.length || answer.token >= server.vocabulary().size()) {
            throw fault("accepted " + answer.nAccepted + " of " + draft.length + " tokens and added token "
                    + answer.token + " of " + server.vocabulary().size());
        }
        double serverS = 1e-6 * Math.max(0, answer.serverUs);
        if (!prefilling) {
            costs.observe(draft.length + 1, serverS);
        }
        if (draft.length > 0) {
            observeRoundTrip(1e-9 * (System.nanoTime() - submittedAt) - serverS);
        }
        prefilling = false;
        int[] tokens = Arrays.copyOf(draft, answer.nAccepted + 1);
        tokens[answer.nAccepted] = answer.token;
        nKnown = context.size() + tokens.length;
        return tokens;
    }

    /** Takes note of the emitted tokens of the last verdict, which the end of the answer may have cut. */
    void accept(int[] tokens) {
        context.addAll(tokens);
    }

    /** Tells the server that no more tokens are wanted. */
    void finish() {
        if (due <= lastRound) {
            send(Wire.cancel());
        }
    }

    /** Closes the connection in order, so that the server deletes the session. */
    @Override
    public void close() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    // One round

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
                    if (((Frame.Answer) frame).round == due) {
                        due++;
                        lostAt = 0;
                        return (Frame.Answer) frame;
                    }
                } else if (frame instanceof Frame.Need) {
                    needs++;
                    correct((Frame.Need) frame, needs);
                    sendBegin();
                    sendVerify();
                } else if (frame instanceof Frame.Busy) {
                    waitWhileBusy((Frame.Busy) frame);
                    sendVerify();
                } else if (!(frame instanceof Frame.Progress)) {
                    throw fault("sent another frame instead of a verdict");
                }
            } catch (VerifierException.Unavailable error) {
                waitToReconnect(error);
            }
        }
    }

    /** Waits a moment before the next attempt. Throws the error if there is still a connection, or there
     * was none for too long. */
    private void waitToReconnect(VerifierException.Unavailable error) throws VerifierException {
        long now = System.nanoTime();
        if (lostAt == 0) {
            lostAt = now;
        }
        if (connection != null || now - lostAt > timeoutMs * 1000000L) {
            throw error;
        }
        stop.sleep(POLL_MS);
    }

    /** Notes that the server has fewer tokens than assumed, or other ones. */
    private void correct(Frame.Need need, int needs) throws VerifierException {
        if (needs > MAX_NEEDS) {
            throw fault("asks for the same context again and again");
        }
        boolean same = need.have >= 0 && need.have < Math.min(nKnown, context.size() + 1)
                && context.checksum((int) need.have) == need.checksum;
        nKnown = same ? (int) need.have : 0;
    }

    private void waitWhileBusy(Frame.Busy busy) throws VerifierException {
        if (System.nanoTime() - submittedAt > timeoutMs * 1000000L) {
            throw new VerifierException.Unavailable(server + " has no room: " + busy.message);
        }
        long ms = Math.min(Math.max(busy.retryMs, 1), timeoutMs);
        stop.sleep((long) (ms * (1 + random.nextDouble() / 2)));
    }

    /** Returns how many tokens the server may emit by itself after the next one. */
    private int nAhead() {
        int emitted = context.size() - nPrompt;
        int most = Math.min(maxTokens - emitted - 1, contextSize - context.size());
        return Math.max(0, Math.min(maxAhead, most));
    }

    private void sendBegin() {
        int keep = Math.min(nKnown, context.size());
        int[] missing = context.copy(keep, context.size());
        generation++;
        prefilling = true;
        due = lastRound + 1;
        send(Wire.begin(generation, keep, context.checksum(keep), nPrompt, temperature, seed, missing));
        nKnown = context.size();
    }

    /**
     * Asks for the next round. A draft after a plain step lets the server continue by itself, because
     * the step after it may be plain again; a draft after another draft does not.
     */
    private void sendVerify() {
        int length = context.size();
        int ahead = draft.length > 0 && draftedLast ? 0 : nAhead();
        draftedLast = draft.length > 0;
        due = lastRound + 1;
        lastRound = due + ahead;
        send(Wire.verify(due, length, context.checksum(length), ahead, draft));
    }

    private void observeRoundTrip(double seconds) {
        if (roundTrips.size() == N_ROUND_TRIPS) {
            roundTrips.removeFirst();
        }
        roundTrips.addLast(Math.max(0, seconds));
    }

    // The connection

    private void connect(int connectTimeoutMs) throws VerifierException {
        connection = server.connect(connectTimeoutMs, stop);
        try {
            open(connectTimeoutMs);
        } catch (VerifierException error) {
            drop();
            throw error;
        }
    }

    private void open(int connectTimeoutMs) throws VerifierException {
        ServerVocabulary vocabulary = server.vocabulary();
        long asked = System.nanoTime();
        send(Wire.open(token, vocabulary.size(), vocabulary.hash(), model));
        Frame frame = receive(connectTimeoutMs);
        if (frame instanceof Frame.Busy) {
            throw new VerifierException.Unavailable(server + ": " + ((Frame.Busy) frame).message);
        }
        if (!(frame instanceof Frame.Opened)) {
            throw fault("sent another frame instead of OPENED");
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
        observeRoundTrip(1e-9 * (System.nanoTime() - asked));
        if (!Arrays.equals(opened.token, token)) {
            nKnown = 0; // a new session, which has no tokens yet
        }
        token = opened.token;
        model = opened.model;
        contextSize = opened.contextSize;
        maxDraft = opened.maxDraft;
        maxAhead = opened.maxAhead;
        costs.setMeasured(opened.costs);
    }

    /** Connects again within the time that a server may be away. */
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

    private void send(byte[] frame) {
        if (connection != null) {
            try {
                connection.send(frame);
            } catch (VerifierException error) {
                drop();
            }
        }
    }

    /** Waits for the next frame. Throws if it is an ERROR. */
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
            }
            if (data != null) {
                arrived = Wire.decode(data);
            } else if (System.nanoTime() > end) {
                drop();
                throw new VerifierException.Unavailable(
                        server + " has not answered for " + timeoutMs / 1000.0 + " s");
            }
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
