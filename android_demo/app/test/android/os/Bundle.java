package android.os;

import java.util.HashMap;
import java.util.Map;

public final class Bundle {
    /** The texts and check marks of views, by their ids. */
    public final Map<Integer, Object> fakeViews = new HashMap<Integer, Object>();
    private final Map<String, Boolean> booleans = new HashMap<String, Boolean>();

    public void putBoolean(String key, boolean value) {
        booleans.put(key, value);
    }

    public boolean getBoolean(String key) {
        return Boolean.TRUE.equals(booleans.get(key));
    }
}
