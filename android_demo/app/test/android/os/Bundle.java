package android.os;

import java.util.HashMap;
import java.util.Map;

public final class Bundle {
    /** The texts and check marks of views, by their ids. */
    public final Map<Integer, Object> fakeViews = new HashMap<>();
    private final Map<String, Boolean> booleans = new HashMap<>();

    public void putBoolean(String key, boolean value) { booleans.put(key, value); }
    public boolean getBoolean(String key) { return booleans.getOrDefault(key, false); }
}
