package edgespec.app;

import android.content.SharedPreferences;
import java.net.URI;
import java.net.URISyntaxException;
import java.util.Locale;

/** The user's settings, immutable. The key is in no log, no backup and no message. */
final class Choices {
    /** Address of the server, "" for none. */
    final String server;
    final String key;
    /** True if the user allows an unencrypted connection to another machine. */
    final boolean cleartext;
    /** Path of a GGUF file, "" for none. */
    final String model;

    Choices(String server, String key, boolean cleartext, String model) {
        this.server = server.trim();
        this.key = key.trim();
        this.cleartext = cleartext;
        this.model = model.trim();
    }

    static Choices load(SharedPreferences from) {
        return new Choices(from.getString("server", ""), from.getString("key", ""),
                from.getBoolean("cleartext", false), from.getString("model", ""));
    }

    void save(SharedPreferences to) {
        to.edit().putString("server", server).putString("key", key)
                .putBoolean("cleartext", cleartext).putString("model", model).apply();
    }

    boolean sameAs(Choices other) {
        return other != null && server.equals(other.server) && key.equals(other.key)
                && cleartext == other.cleartext && model.equals(other.model);
    }

    /** Returns a sentence that says why the app does not connect to this server; null if it does. */
    String refusal() {
        if (server.isEmpty()) {
            return null;
        }
        URI address;
        try {
            address = new URI(server);
        } catch (URISyntaxException malformed) {
            return "The server address " + server + " is not an address: " + malformed.getReason() + ".";
        }
        String scheme = String.valueOf(address.getScheme()).toLowerCase(Locale.ROOT);
        boolean encrypted = scheme.equals("wss") || scheme.equals("https");
        if (!encrypted && !scheme.equals("ws") && !scheme.equals("http")) {
            return "The server address " + server + " must begin with wss:// or ws://, "
                    + "as in wss://my-computer:8080.";
        }
        if (address.getHost() == null) {
            return "The server address " + server + " names no computer; "
                    + "it should look like wss://my-computer:8080.";
        }
        if (!encrypted && !cleartext && !isThisPhone(address.getHost())) {
            return "The connection to " + address.getHost() + " would not be encrypted: everybody on the way "
                    + "could read the key and what is said. Use wss://, or allow it in the settings.";
        }
        return null;
    }

    private static boolean isThisPhone(String host) {
        return host.equals("localhost") || host.equals("[::1]")
                || host.matches("127\\.[0-9]+\\.[0-9]+\\.[0-9]+");
    }
}
