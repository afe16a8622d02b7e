package edgespec.app;

import android.content.SharedPreferences;
import edgespec.Address;
import edgespec.VerifierException;

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
        try {
            Address address = Address.parse(server);
            boolean thisPhone = address.host.matches("localhost|\\[::1\\]|127(\\.[0-9]+){3}");
            if (!address.secure && !cleartext && !thisPhone) {
                return "The connection to " + address.host + " would not be encrypted: everybody on the way "
                        + "could read the key and what is said. Use wss://, or allow it in the settings.";
            }
        } catch (VerifierException error) {
            return "The server address is wrong: " + error.getMessage() + ".";
        }
        return null;
    }
}
