package edgespec;

import java.io.File;
import java.util.ArrayList;
import java.util.List;

/**
 * What a conversation runs with. Set the fields, then give it to {@link Chat}, which takes a copy.
 */
public final class Settings {
    /** Address of the verification server: ws://, wss://, http:// or https://; "" for none. */
    public String server = "";
    /** The server's API key, "" for none. */
    public String key = "";
    /** Name of the model that the server must have, "" for any. */
    public String serverModel = "";
    /** The small model on the device, or null. Chat uses it and does not close it. */
    public Model model = null;
    /** Where the server's vocabulary is kept, or null to fetch it at every connection. */
    public File folder = null;
    /** Most tokens of an answer. */
    public int maxTokens = 256;
    /** Texts that end an answer; they are not part of it. */
    public List<String> stop = new ArrayList<String>();
    /** 0 is greedy. Only the server draws; the model on the device is always greedy. */
    public double temperature = 0;
    /** What the server's draws depend on. */
    public long seed = 0;
    /** How long a lost server is looked for before it counts as gone, in milliseconds. */
    public int timeoutMs = 10000;

    /** A copy that later changes of this one do not reach. */
    public Settings copy() {
        Settings copy = new Settings();
        copy.server = server;
        copy.key = key;
        copy.serverModel = serverModel;
        copy.model = model;
        copy.folder = folder;
        copy.maxTokens = maxTokens;
        copy.stop = new ArrayList<String>(stop);
        copy.temperature = temperature;
        copy.seed = seed;
        copy.timeoutMs = timeoutMs;
        return copy;
    }
}
