package edgespec;

import java.io.File;

/**
 * The settings of a conversation. Set the fields, then pass the object to {@link Chat}.
 */
public final class Settings {
    /** URL of the verification server: ws://, wss://, http:// or https://; "" for none. */
    public String server = "";
    /** The server's API key, "" for none. */
    public String key = "";
    /** The small model on the device, or null. Chat uses it and does not close it. */
    public Model model = null;
    /** Folder in which the server's vocabulary is kept, or null to fetch it at every connection. */
    public File folder = null;
    /** Most tokens of an answer. */
    public int maxTokens = 256;
    /** Sampling temperature on the server, 0 for greedy. The model on the device is always greedy. */
    public double temperature = 0;
    /** Seed of the server's random draws. */
    public long seed = 0;
    /** Milliseconds for which a lost connection is tried again before the server counts as gone. */
    public int timeoutMs = 10000;
}
