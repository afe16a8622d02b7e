package edgespec;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Reads and writes as much JSON as /tokenize needs. The package org.json exists on Android only, and
 * the core runs on any Java.
 */
final class Json {
    private static final int DEEPEST = 64;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /**
     * Parses a document into Map, List, String, BigDecimal, Boolean or null.
     *
     * @throws ProtocolException if the text is no JSON
     */
    static Object parse(String text) throws ProtocolException {
        Json json = new Json(text);
        Object value = json.value(0);
        json.blanks();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    /** Writes a text as a JSON string. */
    static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format(Locale.ROOT, "\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    /** Writes the body of a request to POST /tokenize. */
    static String tokenizeRequest(List<Message> messages) {
        StringBuilder out = new StringBuilder("{\"messages\":[");
        for (Message message : messages) {
            out.append(out.charAt(out.length() - 1) == '[' ? "" : ",");
            out.append("{\"role\":").append(quote(message.role));
            out.append(",\"content\":").append(quote(message.content)).append("}");
        }
        return out.append("],\"add_generation_prompt\":true}").toString();
    }

    /** Reads the token ids from the answer of /tokenize. */
    static int[] tokens(String body) throws ProtocolException {
        Object tokens = member(parse(body), "tokens");
        if (!(tokens instanceof List)) {
            throw new ProtocolException("the server's answer to /tokenize has no list of tokens");
        }
        List<?> found = (List<?>) tokens;
        int[] ids = new int[found.size()];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = id(found.get(i));
        }
        return ids;
    }

    /** Reads the message from the body of an error; "" if there is none. */
    static String errorMessage(String body) {
        try {
            Object message = member(member(parse(body), "error"), "message");
            return message instanceof String ? (String) message : "";
        } catch (ProtocolException error) {
            return "";
        }
    }

    private static Object member(Object value, String name) {
        return value instanceof Map ? ((Map<?, ?>) value).get(name) : null;
    }

    private static int id(Object value) throws ProtocolException {
        try {
            int id = value instanceof BigDecimal ? ((BigDecimal) value).intValueExact() : -1;
            if (id >= 0) {
                return id;
            }
        } catch (ArithmeticException error) {
            // the exception below says it
        }
        throw new ProtocolException("the server's answer to /tokenize has " + value + " for a token id");
    }

    private Object value(int depth) throws ProtocolException {
        blanks();
        char c = peek();
        if (depth > DEEPEST) {
            throw wrong();
        } else if (c == '{') {
            return object(depth);
        } else if (c == '[') {
            return array(depth);
        } else if (c == '"') {
            return string();
        } else if (c == '-' || c >= '0' && c <= '9') {
            return number();
        }
        return word();
    }

    private Map<String, Object> object(int depth) throws ProtocolException {
        Map<String, Object> found = new LinkedHashMap<String, Object>();
        at++;
        for (boolean more = !ends('}'); more; more = another('}')) {
            blanks();
            String name = string();
            blanks();
            expect(':');
            found.put(name, value(depth + 1));
        }
        return found;
    }

    private List<Object> array(int depth) throws ProtocolException {
        List<Object> found = new ArrayList<Object>();
        at++;
        for (boolean more = !ends(']'); more; more = another(']')) {
            found.add(value(depth + 1));
        }
        return found;
    }

    private boolean ends(char close) throws ProtocolException {
        blanks();
        if (peek() != close) {
            return false;
        }
        at++;
        return true;
    }

    private boolean another(char close) throws ProtocolException {
        if (ends(close)) {
            return false;
        }
        expect(',');
        return true;
    }

    private String string() throws ProtocolException {
        expect('"');
        StringBuilder out = new StringBuilder();
        for (char c = next(); c != '"'; c = next()) {
            out.append(c == '\\' ? escaped() : c);
        }
        return out.toString();
    }

    private char escaped() throws ProtocolException {
        char c = next();
        if (c == 'u') {
            if (text.length() - at < 4) {
                throw wrong();
            }
            at += 4;
            try {
                return (char) Integer.parseInt(text.substring(at - 4, at), 16);
            } catch (NumberFormatException error) {
                throw wrong();
            }
        }
        int which = "bfnrt".indexOf(c);
        return which < 0 ? c : "\b\f\n\r\t".charAt(which);
    }

    private BigDecimal number() throws ProtocolException {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        try {
            return new BigDecimal(text.substring(start, at));
        } catch (NumberFormatException error) {
            throw wrong();
        }
    }

    private Object word() throws ProtocolException {
        for (String word : new String[] {"true", "false", "null"}) {
            if (text.startsWith(word, at)) {
                at += word.length();
                return word.equals("null") ? null : Boolean.valueOf(word);
            }
        }
        throw wrong();
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() throws ProtocolException {
        if (at >= text.length()) {
            throw wrong();
        }
        return text.charAt(at);
    }

    private char next() throws ProtocolException {
        char c = peek();
        at++;
        return c;
    }

    private void expect(char c) throws ProtocolException {
        if (next() != c) {
            throw wrong();
        }
    }

    private ProtocolException wrong() {
        return new ProtocolException("the server's answer is no JSON, seen at character " + at);
    }
}
