package edgespec;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/**
 * One conversation. {@link #send} blocks; {@link #cancel}, {@link #messages} and {@link #close} may be
 * called from any thread and do not.
 *
 * <p>The server answers if there is an address, else the model on the device. Where the server is
 * gone the model on the device goes on with the same answer, after a note, and the server is asked
 * again at the next message.
 */
public final class Chat implements Closeable {
    /** How long a server that was gone is waited for when there is a model that can answer. */
    private static final int SHORT_PATIENCE_MS = 1000;
    private static final int MIN_MATCH = 2;

    private final Settings settings;
    private final List<Message> messages;
    private final StopFlag stop = new StopFlag();
    private final Object sending = new Object();
    private final SuffixDrafter lookup = new SuffixDrafter(MIN_MATCH, 0);
    private RemoteVerifier verifier;
    private Server server;
    private Drafting.Far drafting;
    private ModelCache cache;
    private boolean gone;
    private boolean closed;
    private int nDropped;
    private int[] lastPrompt = {};
    private int[] earlier = {};

    /** @param earlier the conversation so far, empty for a new one */
    public Chat(Settings settings, List<Message> earlier) {
        this.settings = settings.copy();
        this.messages = new ArrayList<Message>(earlier);
    }

    /**
     * Asks, and tells the listener the answer as it comes. Errors go to the listener as sentences
     * too; what was said until then is in {@link #messages}, and the next send tries again. A
     * question that got no answer at all stays in {@link #messages}, and is left out of later prompts.
     *
     * @return the figures of the answer
     */
    public Stats send(String text, Listener listener) {
        synchronized (sending) {
            stop.set(closed);
            add(new Message("user", text));
            Output output = new Output(settings.maxTokens, settings.stop);
            Figures figures = new Figures();
            try {
                answer(output, figures, listener);
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
            if (!output.text().isEmpty()) {
                add(new Message("assistant", output.text()));
            }
            Stats stats = figures.stats(output.size(), output.finishReason());
            listener.onStats(stats);
            return stats;
        }
    }

    /** Ends the answer under way, if any; what was said stays. */
    public void cancel() {
        stop.set(true);
    }

    /** The conversation so far: a copy. While an answer comes it ends with the question. */
    public List<Message> messages() {
        synchronized (messages) {
            return new ArrayList<Message>(messages);
        }
    }

    /** Ends the answer under way and leaves the server. The model on the device stays open. */
    @Override
    public void close() {
        cancel();
        new Thread("edgespec-close") { // saying goodbye is network, which the app's main thread may not
            @Override
            public void run() {
                synchronized (sending) {
                    closed = true;
                    leave();
                }
            }
        }.start();
    }

    private void add(Message message) {
        synchronized (messages) {
            messages.add(message);
        }
    }

    private void answer(Output output, Figures figures, Listener listener) throws IOException {
        if (settings.server.trim().isEmpty()) {
            if (settings.model == null) {
                throw new VerifierException.Refused("there is neither a server nor a model on the "
                        + "device to answer: give an address or a model file in the settings");
            }
            answerHere(output, figures, listener);
            return;
        }
        try {
            answerFar(output, figures, listener);
        } catch (VerifierException.Unavailable error) {
            leave();
            if (settings.model == null) {
                throw error;
            }
            if (!gone) {
                listener.onNote(sentence(error.getMessage() + "; the model on the device answers"));
            }
            gone = true;
            answerHere(output, figures, listener);
        } catch (VerifierException.Cancelled error) {
            throw error;
        } catch (VerifierException.ContextFull error) {
            throw error;
        } catch (IOException error) {
            leave(); // whatever it was, the next question begins with a new connection
            throw error;
        }
    }

    private void answerFar(Output output, Figures figures, Listener listener) throws IOException {
        if (verifier == null) {
            connect();
        }
        if (gone) {
            gone = false;
            listener.onNote("The server is back.");
        }
        int[] prompt = fitting(new Encoder(verifier.contextSize()) {
            @Override
            int[] encode(List<Message> asked) throws IOException {
                return server.tokenize(asked, stop);
            }
        }, listener);
        lastPrompt = prompt;
        drafting.begin(prompt, earlier);
        output.speak(server.vocabulary(), false);
        new Session(verifier, stop).run(prompt, drafting, output, figures, listener);
    }

    private void connect() throws IOException {
        int patienceMs = settings.timeoutMs;
        if (gone && settings.model != null) {
            patienceMs = Math.min(patienceMs, SHORT_PATIENCE_MS);
        }
        server = new Server(settings.server, settings.key, settings.folder, settings.timeoutMs);
        server.loadVocabulary(patienceMs, stop);
        Sampling sampling = new Sampling();
        sampling.temperature = settings.temperature;
        verifier = new RemoteVerifier(server, settings.serverModel, sampling, settings.seed,
                settings.timeoutMs, patienceMs, stop);
        ModelDrafter model = isSame() ? new ModelDrafter(cache()) : null;
        drafting = new Drafting.Far(verifier, lookup, model);
    }

    /** Whether the model on the device has the server's vocabulary. */
    private boolean isSame() {
        return settings.model != null && server != null && server.vocabulary() != null
                && Arrays.equals(settings.model.vocabularyHash(), server.vocabulary().hash());
    }

    private ModelCache cache() throws IOException {
        if (cache == null) {
            cache = new ModelCache(settings.model);
        }
        return cache;
    }

    /** The model on the device, behind what the server may have said of this answer. */
    private void answerHere(Output output, Figures figures, Listener listener) throws IOException {
        final int[] said = output.size() == 0 ? new int[0] : said(output);
        int[] prompt = fitting(new Encoder(settings.model.contextSize() - said.length) {
            @Override
            int[] encode(List<Message> asked) throws IOException {
                return settings.model.encodeChat(asked);
            }
        }, listener);
        IntList context = new IntList(prompt);
        context.addAll(said);
        figures.source = "device";
        output.speak(settings.model, isSame());
        Verifier here = new LocalVerifier(cache(), stop);
        new Session(here, stop).run(context.toArray(), Drafting.NONE, output, figures, listener);
    }

    /** Tokens of the model on the device for what was said so far. */
    private int[] said(Output output) {
        if (isSame()) {
            return output.tokens();
        }
        return new Pieces(settings.model, settings.model.vocabularySize()).encode(output.allText());
    }

    private void leave() {
        if (verifier != null) {
            verifier.close();
            verifier = null;
        }
    }

    // Prompts

    /** Makes token ids of a conversation for a context of so many tokens. */
    private abstract static class Encoder {
        final int contextSize;

        Encoder(int contextSize) {
            this.contextSize = contextSize;
        }

        abstract int[] encode(List<Message> asked) throws IOException;
    }

    /** Token ids of the newest messages that leave room for an answer; edgespec/decoding/chat.py. */
    private int[] fitting(Encoder encoder, Listener listener) throws IOException {
        int reserve = Math.min(settings.maxTokens, encoder.contextSize / 4);
        List<Message> asked = answered();
        int first = asked.get(0).role.equals("system") ? 1 : 0;
        int dropped = 0;
        while (true) {
            int[] prompt = encoder.encode(asked);
            if (prompt.length + reserve <= encoder.contextSize) {
                tellDropped(dropped, listener);
                return prompt;
            }
            if (asked.size() - first < 3) {
                throw new VerifierException.ContextFull("this message makes a prompt of " + prompt.length
                        + " tokens; the context has room for " + (encoder.contextSize - reserve)
                        + " beside the answer: ask something shorter");
            }
            asked.subList(first, first + 2).clear();
            dropped += 2;
        }
    }

    private void tellDropped(int dropped, Listener listener) {
        if (dropped > nDropped) {
            listener.onNote("The context is full: the oldest messages are left out from now on.");
            earlier = lastPrompt; // lookup still copies from them
        }
        nDropped = dropped;
    }

    /** The conversation without questions that got no answer: templates want turns to alternate. */
    private List<Message> answered() {
        List<Message> all = messages();
        List<Message> kept = new ArrayList<Message>();
        for (int i = 0; i < all.size(); i++) {
            boolean last = i + 1 == all.size();
            boolean unanswered = !last && all.get(i).role.equals("user")
                    && all.get(i + 1).role.equals("user");
            if (!unanswered) {
                kept.add(all.get(i));
            }
        }
        return kept;
    }

    /** With a full stop, and a capital letter where it does not begin with an address. */
    private static String sentence(String message) {
        String text = message == null || message.isEmpty() ? "it failed without saying why" : message;
        boolean address = text.split(" ")[0].contains(":");
        String start = address ? text.substring(0, 1) : text.substring(0, 1).toUpperCase(Locale.ROOT);
        return start + text.substring(1) + (text.endsWith(".") ? "" : ".");
    }
}
