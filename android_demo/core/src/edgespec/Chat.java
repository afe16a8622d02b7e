package edgespec;

import java.io.Closeable;
import java.util.ArrayList;
import java.util.List;

/**
 * One conversation. {@link #send} blocks; {@link #cancel} and {@link #messages} may be called from
 * any thread.
 */
public final class Chat implements Closeable {
    private final Settings settings;
    private final List<Message> messages;

    /** @param earlier the conversation so far, empty for a new one */
    public Chat(Settings settings, List<Message> earlier) {
        this.settings = settings.copy();
        this.messages = new ArrayList<Message>(earlier);
    }

    /**
     * Asks, and tells the listener the answer as it comes. Errors go to the listener as sentences
     * too; what was said until then is in {@link #messages}, and the next send tries again.
     *
     * @return the figures of the answer
     */
    public Stats send(String text, Listener listener) {
        synchronized (messages) {
            messages.add(new Message("user", text));
        }
        Stats stats = new Stats(0, 0, 0, 0, 0, "error", "server");
        listener.onError("There is neither a server nor a model on the device: give one in the settings.");
        listener.onStats(stats);
        return stats;
    }

    /** Ends the answer under way, if any; what was said stays. */
    public void cancel() {
    }

    /** The conversation so far: a copy. While an answer comes it ends with the question. */
    public List<Message> messages() {
        synchronized (messages) {
            return new ArrayList<Message>(messages);
        }
    }

    /** Leaves the server. The model on the device stays open. */
    @Override
    public void close() {
    }
}
