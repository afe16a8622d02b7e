package edgespec;

import java.net.URI;
import java.net.URISyntaxException;

/** The address of a verification server, for its WebSocket and its HTTP routes. */
public final class Address {
    public final String host;
    final int port;
    public final boolean secure;
    /** The path before /v1/verify and /tokenize, "" if the server has a host of its own. */
    final String prefix;

    private Address(String host, int port, boolean secure, String prefix) {
        this.host = host;
        this.port = port;
        this.secure = secure;
        this.prefix = prefix;
    }

    /** Parses a ws://, wss://, http:// or https:// URL, which may end with /v1 or /v1/verify. */
    public static Address parse(String text) throws VerifierException {
        try {
            URI uri = new URI(text.trim());
            String scheme = String.valueOf(uri.getScheme());
            boolean secure = scheme.equalsIgnoreCase("wss") || scheme.equalsIgnoreCase("https");
            boolean plain = scheme.equalsIgnoreCase("ws") || scheme.equalsIgnoreCase("http");
            if ((secure || plain) && uri.getHost() != null && uri.getRawUserInfo() == null) {
                int port = uri.getPort() >= 0 ? uri.getPort() : secure ? 443 : 80;
                return new Address(uri.getHost(), port, secure, prefix(uri.getRawPath()));
            }
        } catch (URISyntaxException error) {
            // the exception below says it
        }
        throw new VerifierException.Refused("\"" + text + "\" is no address of a verification server; "
                + "ws://host:port and wss://host:port are");
    }

    private static String prefix(String path) {
        String prefix = path.replaceAll("/+$", "");
        for (String end : new String[] {"/verify", "/v1"}) {
            if (prefix.endsWith(end)) {
                prefix = prefix.substring(0, prefix.length() - end.length());
            }
        }
        return prefix;
    }

    /** Returns the URL of an HTTP route of the server. */
    String http(String route) { return (secure ? "https://" : "http://") + this + prefix + route; }

    /** Returns the host without the brackets of an IPv6 address, as sockets expect it. */
    String bareHost() { return host.startsWith("[") ? host.substring(1, host.length() - 1) : host; }

    /** Returns host:port, as messages name the server. */
    @Override
    public String toString() { return host + ":" + port; }
}
