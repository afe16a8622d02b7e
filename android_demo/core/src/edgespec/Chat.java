package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * Answers the questions of one conversation. {@link #send} blocks; {@link #cancel} and {@link #close} do
 * not and may be called from any thread.
 *
 * <p>The server answers if the settings have its address, else the model on the device. If the server
 * is lost, the model on the device continues the same answer after a note, and the next message goes
 * to the server again.
 */
public final class Chat implements Closeable {
    /** Timeout for connecting to a server that was lost, if the model on the device can answer instead. */
    private static final int SHORT_TIMEOUT_MS = 1000;
    private static final int MIN_MATCH = 2;

    private final Settings settings;
    private final StopFlag stop = new StopFlag();
    private final Object sending = new Object();
    private final SuffixDrafter lookup = new SuffixDrafter(MIN_MATCH, 0);
    private List<Message> conversation;
    private RemoteVerifier verifier;
    private Server server;
    private Drafting drafting;
    private ModelCache cache;
    private boolean serverGone;
    private boolean closed;
    private int nDropped;
    private int[] lastPrompt = {};
    private int[] earlier = {};

    /** Connects with the first question. */
    public Chat(Settings settings) {
        this.settings = settings;
    }

    /**
     * Passes the answer to a conversation to the listener while it is generated. Errors go to the
     * listener as sentences, too; the text before an error stays, and the next send tries again.
     *
     * @param conversation questions and answers in turns, and the new question
     * @return the statistics of the answer
     */
    public Stats send(List<Message> conversation, Listener listener) {
        synchronized (sending) {
            stop.set(closed);
            this.conversation = conversation;
            Output output = new Output(settings.maxTokens);
            RunningStats running = new RunningStats();
            try {
                answer(output, running, listener);
            } catch (VerifierException.Cancelled error) {
                output.finish("cancelled");
            } catch (IOException error) {
                output.finish("error");
                listener.onError(sentence(error.getMessage()));
            } catch (RuntimeException error) {
                output.finish("error");
                listener.onError(sentence("the app has a fault, please report it: " + error));
            }
            output.flush(listener);
            Stats stats = running.snapshot(output);
            listener.onStats(stats);
            return stats;
        }
    }

    /** Stops the answer that is being generated, if any; its text so far stays. */
    public void cancel() {
        stop.set(true);
    }

    /** Stops the answer and disconnects from the server. The model on the device stays open. */
    @Override
    public void close() {
        cancel();
        new Thread("edgespec-close") { // Android forbids network access on the main thread
            @Override
            public void run() {
                synchronized (sending) {
                    closed = true;
                    disconnect();
                }
            }
        }.start();
    }

    private void answer(Output output, RunningStats running, Listener listener) throws IOException {
        if (settings.server.trim().isEmpty()) {
            if (settings.model == null) {
                throw new VerifierException.Refused("there is neither a server nor a model on the "
                        + "device to answer: give an address or a model file in the settings");
            }
            answerLocally(output, running, listener);
            return;
        }
        try {
            answerRemotely(output, running, listener);
        } catch (VerifierException.Unavailable error) {
            disconnect();
            if (settings.model == null) {
                throw error;
            }
            if (!serverGone) {
                listener.onNote(sentence(error.getMessage() + "; the model on the device answers"));
            }
            serverGone = true;
            answerLocally(output, running, listener);
        } catch (VerifierException.Cancelled | VerifierException.ContextFull error) {
            throw error;
        } catch (IOException error) {
            disconnect(); // so that the next question begins with a new connection
            throw error;
        }
    }

    private void answerRemotely(Output output, RunningStats running, Listener listener) throws IOException {
        if (verifier == null) {
            connect();
        }
        if (serverGone) {
            serverGone = false;
            listener.onNote("The server is back.");
        }
        int[] prompt = fitPrompt(true, verifier.contextSize(), listener);
        lastPrompt = prompt;
        drafting.begin(prompt, earlier);
        output.useVocabulary(server.vocabulary(), false);
        new Session(verifier, stop).run(prompt, drafting, output, running, listener);
    }

    private void connect() throws IOException {
        int connectTimeoutMs = settings.timeoutMs;
        if (serverGone && settings.model != null) {
            connectTimeoutMs = Math.min(connectTimeoutMs, SHORT_TIMEOUT_MS);
        }
        server = new Server(settings.server, settings.key, settings.folder, settings.timeoutMs);
        server.loadVocabulary(connectTimeoutMs, stop);
        verifier = new RemoteVerifier(server, settings.temperature, settings.seed, settings.timeoutMs,
                connectTimeoutMs, stop);
        ModelDrafter model = sharesVocabulary() ? new ModelDrafter(cache()) : null;
        drafting = new Drafting(verifier, lookup, model);
    }

    /** Returns true if the model on the device has the server's vocabulary. */
    private boolean sharesVocabulary() {
        return settings.model != null && server != null && server.vocabulary() != null
                && Arrays.equals(settings.model.vocabularyHash(), server.vocabulary().hash());
    }

    private ModelCache cache() throws IOException {
        if (cache == null) {
            cache = new ModelCache(settings.model);
        }
        return cache;
    }

    /** Answers with the model on the device, after what the server has emitted of this answer, if any. */
    private void answerLocally(Output output, RunningStats running, Listener listener) throws IOException {
        int[] emitted = sharesVocabulary() || output.size() == 0 ? output.tokens()
                : settings.model.encode(output.text());
        int[] prompt = fitPrompt(false, settings.model.contextSize() - emitted.length, listener);
        IntList context = new IntList(prompt);
        context.addAll(emitted);
        running.source = "device";
        output.useVocabulary(settings.model, sharesVocabulary());
        while (output.finishReason().isEmpty()) {
            int[] next = {cache().likeliest(context.toArray(), stop)};
            context.addAll(output.cut(next, listener));
            if (context.size() > settings.model.contextSize()) {
                output.finish("length");
            }
            running.reportNowAndThen(output, listener);
        }
    }

    private void disconnect() {
        if (verifier != null) {
            verifier.close();
            verifier = null;
        }
    }

    // Prompts

    /** Returns the token ids of the newest messages that leave space for an answer, as
     * edgespec/decoding/chat.py does. */
    private int[] fitPrompt(boolean remote, int contextSize, Listener listener) throws IOException {
        int reserve = Math.min(settings.maxTokens, contextSize / 4);
        List<Message> asked = new ArrayList<Message>(conversation);
        int first = asked.get(0).role.equals("system") ? 1 : 0;
        int dropped = 0;
        while (true) {
            int[] prompt = remote ? server.tokenize(asked, stop) : settings.model.encodeChat(asked);
            if (prompt.length + reserve <= contextSize) {
                noteDropped(dropped, listener);
                return prompt;
            }
            if (asked.size() - first < 3) {
                throw new VerifierException.ContextFull("this message makes a prompt of " + prompt.length
                        + " tokens; the context has room for " + (contextSize - reserve)
                        + " besides the answer: ask something shorter");
            }
            asked.subList(first, first + 2).clear();
            dropped += 2;
        }
    }

    private void noteDropped(int dropped, Listener listener) {
        if (dropped > nDropped) {
            listener.onNote("The context is full: the oldest messages are left out from now on.");
            earlier = lastPrompt; // prompt lookup may still copy from them
        }
        nDropped = dropped;
    }

    /** Adds a full stop, and a capital letter unless the message begins with an address. */
    private static String sentence(String message) {
        String text = message == null || message.isEmpty() ? "it failed without saying why" : message;
        boolean address = text.split(" ")[0].contains(":");
        String start = address ? text.substring(0, 1) : text.substring(0, 1).toUpperCase(Locale.ROOT);
        return start + text.substring(1) + (text.endsWith(".") ? "" : ".");
    }
}
